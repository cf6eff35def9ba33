"""From a scenario and what the command line asks for to a TrainingSetting and its jobs, or a parity run's configs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tcbench.core.errors import SelectionError
from tcbench.core.numerics import (
    BASE,
    RANKS_TECHNIQUES,
    TECHNIQUES,
    ParityCell,
    ParityJob,
    Technique,
    TrainingJob,
    TrainingSetting,
)
from tcbench.core.record import (
    DEFAULT_BACKEND,
    Cell,
    CudnnSettings,
    Input,
    KfacSettings,
    MeasureSettings,
    TrainSettings,
)
from tcbench.engine.api import SMALL_RESNET, Device, ImageFolder, Network, backend, known_models
from tcbench.run.plan import missing, why_not
from tcbench.run.scenario import Config, Scenario

GLOBAL_BATCH = 131_072
"""The talk's slide 34: 4096 GPUs, 32 images each."""

LEARNING_RATE = 0.001
"""The last of K. He et al.'s schedule for ResNet ("Deep Residual Learning for Image Recognition", 2015, section 3.4:
0.1, divided by 10 twice)."""

STEPS, SEEDS, PARITY_STEPS = 240, 5, 5

METHODS, RATES = ("sgd", "kfac"), (0.03, 0.1, 0.3, 1.0)
"""The learning rates that both are tuned over."""
LARGE_BATCH, RACE_STEPS, RACE_SEEDS, TUNING_SEED = 1024, 24, 3, 1000
"""Of steps to a loss: a quarter of the generated images in a step, and twice the steps that K-FAC needs."""

RANKS_LEARNING_RATE, _RANKS_NOISE, _RANKS_TRAIN_IMAGES = 0.2, 3.0, 32_768
"""Of one rank, so high that four times as much breaks the first steps without a warm-up; patterns that are hard to tell
apart, and so many of them that none is seen twice: what is compared is training, not how much is learnt by heart."""

BATCH, IMAGE = 32, 16
"""Of the small network."""

_CLASSES, _TRAIN_IMAGES, _TEST_IMAGES, _NOISE = 10, 4096, 2048, 1.0
_OBSERVED_STEPS = 8
_DYNAMIC_START = 2.0**16
"""The first scale of PyTorch's GradScaler."""
_GROWTHS = 8
"""Doublings in a run of a dynamic scale that never overflows; GradScaler doubles after 2000 steps, which a short
run would never see."""
_IMAGENET_SIZE = 224
_PARITY_IMAGE, _PARITY_BATCH, _PARITY_CLASSES = 32, 8, 10
_RUNGS = ("batched", "nhwc", "fused")
"""Beside the dtype: the fastest ones that change no arithmetic beyond rounding."""


@dataclass(frozen=True)
class NumericsRequest:
    """The command line's request; None leaves the default."""

    steps: int | None = None
    batch_size: int | None = None
    image_size: int | None = None
    learning_rate: float | None = None
    global_batch: int = GLOBAL_BATCH
    data: Path | None = None
    threads: int | None = None
    ranks: int = 1


def setting(
    scenario: Scenario,
    device: Device,
    asked: NumericsRequest,
    cpus: int,
    images: tuple[ImageFolder, ImageFolder] | None,
) -> TrainingSetting:
    """The settings that all runs share. `images`: to train on and to test with, from the folder `asked.data`. Raises
    SelectionError for a global batch below one batch, or too few images for the test."""
    scenario = scenario.on(device.kind)
    steps, ranks = asked.steps or STEPS, asked.ranks
    usual_rate = LEARNING_RATE if ranks == 1 else RANKS_LEARNING_RATE
    learning_rate = usual_rate if asked.learning_rate is None else asked.learning_rate
    if images is None:
        batch_size, image_size = asked.batch_size or BATCH, asked.image_size or IMAGE
        if image_size < 8:
            raise SelectionError(f"--image-size {image_size}: the small network takes images of at least 8 pixels")
        model, n_classes = SMALL_RESNET.name, _CLASSES
        n_train = _TRAIN_IMAGES if ranks == 1 else _RANKS_TRAIN_IMAGES
        n_test, threads = _TEST_IMAGES, asked.threads or 1
    else:
        batch_size = asked.batch_size or scenario.batch_sizes[0]
        image_size = asked.image_size or scenario.model.image_size
        shown, kept = images
        model, n_classes = scenario.models[0], len(shown.classes)
        n_train, n_test, threads = len(shown.files), min(len(kept.files), _TEST_IMAGES), asked.threads or cpus
    batch_size *= ranks
    n_test = n_test // batch_size * batch_size
    if not n_test:
        raise SelectionError(f"--bs {batch_size}: fewer images than that are kept for the test; take a smaller --bs")
    global_batch = asked.global_batch if ranks == 1 else batch_size
    if global_batch < batch_size:
        raise SelectionError(f"--global-batch {asked.global_batch}: expected at least the batch size, {batch_size}")
    rungs: tuple[str, ...] = _RUNGS
    if images is not None and backend(DEFAULT_BACKEND).RUNGS["dali"].requires.packages[0].is_installed():
        rungs = ("dali", *_RUNGS)
    return TrainingSetting(
        scenario=scenario.name,
        model=model,
        variant=scenario.model.variant,
        image_size=image_size,
        n_classes=n_classes,
        batch_size=batch_size,
        steps=steps,
        learning_rate=learning_rate,
        momentum=scenario.train.momentum,
        weight_decay=scenario.train.weight_decay,
        global_batch=global_batch,
        loss_divisor=_divisor(scenario, global_batch, batch_size, image_size if images is None else None),
        growth_interval=max(1, steps // _GROWTHS),
        train_images=n_train,
        test_images=n_test,
        device=device.name,
        threads=threads,
        rungs=rungs,
        skipped=tuple(
            technique.name
            for technique in TECHNIQUES.values()
            if missing(backend(DEFAULT_BACKEND).RUNGS[technique.rung].requires, device)
        ),
        data=None if asked.data is None else str(asked.data),
        noise=0.0 if images else _NOISE if ranks == 1 else _RANKS_NOISE,
        ranks=ranks,
    )


def _divisor(scenario: Scenario, global_batch: int, batch_size: int, small_image: int | None) -> float:
    """The divisor of the batch's mean loss, so that it is its share of the mean over the global batch. A gradient that
    flows back through the last feature map is divided by its pixels too, and the small network's map is much smaller
    than that of the scenario's model on ImageNet: there the divisor makes up for that as well. Rounded down to a power
    of two, it changes no digit of float32's training."""
    if global_batch == batch_size:
        return 1.0
    ratio = global_batch / batch_size
    if small_image is not None and scenario.models[0] in known_models():
        last = _last_size(known_models()[scenario.models[0]], scenario.model.variant, _IMAGENET_SIZE)
        ratio *= (last / _last_size(SMALL_RESNET, SMALL_RESNET.variants[0], small_image)) ** 2
    return 2.0 ** max(0, math.floor(math.log2(ratio)))


def _last_size(model: Network, variant: str, image_size: int) -> int:
    """The side of the feature map before the classifier, in pixels."""
    return [layer.in_size for layer in model.layers(variant, image_size, 2) if layer.kind != "fc"][-1]


def observing(of: TrainingSetting) -> TrainingJob:
    """The fp32 run whose gradients are counted."""
    last, n = of.steps - 1, min(_OBSERVED_STEPS, of.steps)
    steps = sorted({round(i * last / max(1, n - 1)) for i in range(n)})
    return _job(of, TECHNIQUES[BASE], 0, 1.0, tuple(steps))


def jobs(of: TrainingSetting, seeds: int, static_scale: float | None) -> tuple[TrainingJob, ...]:
    """Every technique, of one rank or of many, from every seed, seed by seed, so that drift hits all alike; without a
    static scale those that need none, and of the first seed alone."""
    techniques = TECHNIQUES if of.ranks == 1 else RANKS_TECHNIQUES
    return tuple(
        _job(of, technique, seed, _first_scale(of, technique, static_scale))
        for seed in range(1 if static_scale is None else seeds)
        for technique in techniques.values()
        if technique.name not in of.skipped and (static_scale is not None or technique.scaling != "static")
    )


def method_job(of: TrainingSetting, kfac: KfacSettings, method: str, rate: float, seed: int) -> TrainingJob:
    """One run of a method, in fp32."""
    job = _job(msgspec.structs.replace(of, learning_rate=rate), TECHNIQUES[BASE], seed, 1.0)
    if method == "kfac":
        rungs = (*job.cell.rungs, "kfac")
        train = msgspec.structs.replace(job.cell.train, kfac=kfac)
        cell = msgspec.structs.replace(job.cell, rungs=rungs, config="+".join(rungs), train=train)
        job = msgspec.structs.replace(job, cell=cell)
    return job


def _first_scale(of: TrainingSetting, technique: Technique, static_scale: float | None) -> float:
    if technique.scaling == "static":
        return static_scale or 1.0
    # A dynamic scale never falls below 1, which is the divisor to who counts from the divided loss.
    return max(_DYNAMIC_START, 2 * of.loss_divisor) if technique.scaling == "dynamic" else 1.0


def _job(
    of: TrainingSetting, technique: Technique, seed: int, loss_scale: float, observe_at: tuple[int, ...] = ()
) -> TrainingJob:
    names = ("scenario", "model", "variant", "device", "threads", "batch_size", "image_size", "n_classes")
    source = Input(kind="own") if of.data is None else Input(kind="folder", path=of.data)
    fields = {name: getattr(of, name) for name in names}
    cell = _cell((technique.rung, *of.rungs), seed=seed, input=source, **fields)
    return TrainingJob(cell=cell, setting=of, technique=technique, loss_scale=loss_scale, observe_at=observe_at)


def parity(
    scenario: Scenario, device: Device, configs: Sequence[Config], steps: int, threads: int
) -> tuple[ParityJob, dict[str, str]]:
    """Every config and what leads up to it, rung by rung, each against the one before; fp32 against float64. With why
    other configs, by name, are not held against anything here. Raises SelectionError when none can run here."""
    scenario = scenario.on(device.kind)
    cells: dict[tuple[str, ...], ParityCell] = {}
    skipped = {}
    asked = {config.rungs for config in configs}
    for config in configs:
        if config.backend != DEFAULT_BACKEND or config.ablation:
            why = "an ablation" if config.ablation else f"a config of the backend {config.backend}"
            skipped[config.name] = f"{why}, whose rungs declare nothing here"
            continue
        reason = why_not(config, device, emulate=True)  # the numbers are the same
        if reason:
            skipped[config.name] = reason
            continue
        for n in range(1, len(config.rungs) + 1):
            rungs = config.rungs[:n]
            if rungs not in cells:
                cells[rungs] = _parity_cell(scenario, device, rungs, threads, rungs in asked)
    if not cells:
        raise SelectionError(f"scenario {scenario.name}: no config can run here: {next(iter(skipped.values()))}")
    return ParityJob(cells=tuple(cells.values()), steps=steps), skipped


def _parity_cell(scenario: Scenario, device: Device, rungs: tuple[str, ...], threads: int, asked: bool) -> ParityCell:
    name = "+".join(rungs)
    without = "+".join(rungs[:-1]) or (None if name == BASE else BASE)
    size: dict[str, Any] = {"batch_size": _PARITY_BATCH, "image_size": _PARITY_IMAGE, "n_classes": _PARITY_CLASSES}
    of = {"scenario": scenario.name, "model": scenario.models[0], "variant": scenario.model.variant}
    settings: dict[str, Any] = {"threads": threads, "seed": 0, "cudnn": scenario.cudnn}
    cell = _cell(rungs, device=device.name, input=Input(kind="own"), **settings, **of, **size)
    return ParityCell(cell=cell, rung=rungs[-1], without=without, in_scenario=asked)


def _cell(rungs: tuple[str, ...], **fields: Any) -> Cell:
    """A cell of the default backend, with settings of one that is not measured where `fields` have no others."""
    # Tolerances are declared at the learning rate of TrainSettings(), 0.01.
    unmeasured: dict[str, Any] = {"train": TrainSettings(), "cudnn": CudnnSettings(), "measure": MeasureSettings()}
    return Cell(backend=DEFAULT_BACKEND, config="+".join(rungs), rungs=rungs, **{**unmeasured, **fields})
