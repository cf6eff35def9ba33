"""Settings and jobs of `tcbench numerics`, from a scenario and the command line."""

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
"""Global batch size of the talk's slide 34: 4096 GPUs, 32 images each."""

LEARNING_RATE = 0.001
"""Last learning rate of K. He et al.'s schedule for ResNet.

"Deep Residual Learning for Image Recognition", 2015, section 3.4: 0.1, divided by 10 twice."""

STEPS, SEEDS, PARITY_STEPS = 240, 5, 5

METHODS, RATES = ("sgd", "kfac"), (0.03, 0.1, 0.3, 1.0)
"""Methods of --second-order, and the learning rates that both are tuned over."""
LARGE_BATCH, RACE_STEPS, RACE_SEEDS, TUNING_SEED = 1024, 24, 3, 1000
"""Defaults of --second-order.

A batch is a quarter of the generated images, and the number of steps is twice what K-FAC needs."""

RANKS_LEARNING_RATE, _RANKS_NOISE, _RANKS_TRAIN_IMAGES = 0.2, 3.0, 32_768
"""Defaults of --ranks.

One rank's learning rate is so high that four times as much breaks the first steps without warm-up. The patterns are
hard to tell apart, and there are enough images that none is seen twice: the comparison is about training, not about
memorising."""

BATCH, IMAGE = 32, 16
"""Batch size and image size of the small network."""

_CLASSES, _TRAIN_IMAGES, _TEST_IMAGES, _NOISE = 10, 4096, 2048, 1.0
_OBSERVED_STEPS = 8
_DYNAMIC_START = 2.0**16
"""First loss scale of PyTorch's GradScaler."""
_GROWTHS = 8
"""Number of doublings of a dynamic scale in a run without overflow. GradScaler doubles after 2000 steps, which a short
run would never reach."""
_IMAGENET_SIZE = 224
_PARITY_IMAGE, _PARITY_BATCH, _PARITY_CLASSES = 32, 8, 10
_RUNGS = ("batched", "nhwc", "fused")
"""Rungs besides the data type: the fastest ones that change arithmetic only by rounding."""


@dataclass(frozen=True)
class NumericsRequest:
    """The settings that the command line asks for; None means the default."""

    steps: int | None = None
    batch_size: int | None = None
    image_size: int | None = None
    learning_rate: float | None = None
    global_batch: int = GLOBAL_BATCH
    data: Path | None = None
    threads: int | None = None
    ranks: int = 1


def training_setting(
    scenario: Scenario,
    device: Device,
    request: NumericsRequest,
    cpus: int,
    images: tuple[ImageFolder, ImageFolder] | None,
) -> TrainingSetting:
    """Return the settings that all runs share.

    `images` are the training and the test set, from the folder `request.data`. Raises SelectionError if the global
    batch is smaller than one batch, or there are too few test images."""
    scenario = scenario.on(device.kind)
    steps, ranks = request.steps or STEPS, request.ranks
    usual_rate = LEARNING_RATE if ranks == 1 else RANKS_LEARNING_RATE
    learning_rate = usual_rate if request.learning_rate is None else request.learning_rate
    if images is None:
        batch_size, image_size = request.batch_size or BATCH, request.image_size or IMAGE
        if image_size < 8:
            raise SelectionError(f"--image-size {image_size}: the small network takes images of at least 8 pixels")
        model, n_classes = SMALL_RESNET.name, _CLASSES
        n_train = _TRAIN_IMAGES if ranks == 1 else _RANKS_TRAIN_IMAGES
        n_test, threads = _TEST_IMAGES, request.threads or 1
    else:
        batch_size = request.batch_size or scenario.batch_sizes[0]
        image_size = request.image_size or scenario.model.image_size
        training_set, test_set = images
        model, n_classes = scenario.models[0], len(training_set.classes)
        n_train, n_test, threads = (
            len(training_set.files),
            min(len(test_set.files), _TEST_IMAGES),
            request.threads or cpus,
        )
    batch_size *= ranks
    n_test = n_test // batch_size * batch_size
    if not n_test:
        raise SelectionError(f"--bs {batch_size}: the test set has fewer images than one batch; use a smaller --bs")
    global_batch = request.global_batch if ranks == 1 else batch_size
    if global_batch < batch_size:
        raise SelectionError(f"--global-batch {request.global_batch}: expected at least the batch size, {batch_size}")
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
        data=None if request.data is None else str(request.data),
        noise=0.0 if images else _NOISE if ranks == 1 else _RANKS_NOISE,
        ranks=ranks,
    )


def _divisor(scenario: Scenario, global_batch: int, batch_size: int, small_image: int | None) -> float:
    """Return the divisor of a batch's mean loss, which makes it the batch's share of the global mean.

    Gradients that flow back through the last feature map are also divided by its pixels. The small network's map is
    much smaller than that of the scenario's model on ImageNet, so the divisor makes up for this too. It is rounded down
    to a power of two, so that training in float32 is unchanged to the last digit."""
    if global_batch == batch_size:
        return 1.0
    ratio = global_batch / batch_size
    if small_image is not None and scenario.models[0] in known_models():
        last = _last_size(known_models()[scenario.models[0]], scenario.model.variant, _IMAGENET_SIZE)
        ratio *= (last / _last_size(SMALL_RESNET, SMALL_RESNET.variants[0], small_image)) ** 2
    return 2.0 ** max(0, math.floor(math.log2(ratio)))


def _last_size(model: Network, variant: str, image_size: int) -> int:
    """Return the side of the feature map before the classifier, in pixels."""
    return [layer.in_size for layer in model.layers(variant, image_size, 2) if layer.kind != "fc"][-1]


def observed_job(setting: TrainingSetting) -> TrainingJob:
    """Return the job of the fp32 run whose gradients are counted, at up to _OBSERVED_STEPS evenly spaced steps."""
    last, n = setting.steps - 1, min(_OBSERVED_STEPS, setting.steps)
    steps = sorted({round(i * last / max(1, n - 1)) for i in range(n)})
    return _job(setting, TECHNIQUES[BASE], 0, 1.0, tuple(steps))


def training_jobs(setting: TrainingSetting, seeds: int, static_scale: float | None) -> tuple[TrainingJob, ...]:
    """Return the jobs of all techniques and seeds.

    All techniques of a seed follow each other, so that drift of the machine affects them alike. Without a static scale,
    return only the first seed of the techniques that need none."""
    techniques = TECHNIQUES if setting.ranks == 1 else RANKS_TECHNIQUES
    return tuple(
        _job(setting, technique, seed, _first_scale(setting, technique, static_scale))
        for seed in range(1 if static_scale is None else seeds)
        for technique in techniques.values()
        if technique.name not in setting.skipped and (static_scale is not None or technique.scaling != "static")
    )


def method_job(setting: TrainingSetting, kfac: KfacSettings, method: str, rate: float, seed: int) -> TrainingJob:
    """Return the job of one run of a method, in fp32."""
    job = _job(msgspec.structs.replace(setting, learning_rate=rate), TECHNIQUES[BASE], seed, 1.0)
    if method == "kfac":
        rungs = (*job.cell.rungs, "kfac")
        train = msgspec.structs.replace(job.cell.train, kfac=kfac)
        cell = msgspec.structs.replace(job.cell, rungs=rungs, config="+".join(rungs), train=train)
        job = msgspec.structs.replace(job, cell=cell)
    return job


def _first_scale(setting: TrainingSetting, technique: Technique, static_scale: float | None) -> float:
    """Return the loss scale that a technique begins with."""
    if technique.scaling == "static":
        return static_scale or 1.0
    # A dynamic scale never falls below 1. Relative to the divided loss that is `loss_divisor`.
    return max(_DYNAMIC_START, 2 * setting.loss_divisor) if technique.scaling == "dynamic" else 1.0


def _job(
    setting: TrainingSetting, technique: Technique, seed: int, loss_scale: float, observe_at: tuple[int, ...] = ()
) -> TrainingJob:
    """Return the job of one run of a technique."""
    names = ("scenario", "model", "variant", "device", "threads", "batch_size", "image_size", "n_classes")
    source = Input(kind="own") if setting.data is None else Input(kind="folder", path=setting.data)
    fields = {name: getattr(setting, name) for name in names}
    cell = _cell((technique.rung, *setting.rungs), seed=seed, input=source, **fields)
    return TrainingJob(cell=cell, setting=setting, technique=technique, loss_scale=loss_scale, observe_at=observe_at)


def parity_job(
    scenario: Scenario, device: Device, configs: Sequence[Config], steps: int, threads: int
) -> tuple[ParityJob, dict[str, str]]:
    """Return the job that compares each config, rung by rung, with the config before; fp32 is compared with float64.

    Also returns the configs that are skipped, by name, with the reasons. Raises SelectionError if no config can run
    here."""
    scenario = scenario.on(device.kind)
    cells: dict[tuple[str, ...], ParityCell] = {}
    skipped = {}
    selected = {config.rungs for config in configs}
    for config in configs:
        if config.backend != DEFAULT_BACKEND or config.ablation:
            why = "an ablation" if config.ablation else f"a config of the backend {config.backend}"
            skipped[config.name] = f"{why}, whose rungs have no tolerances"
            continue
        reason = why_not(config, device, emulate=True)  # emulated instructions give the same numbers
        if reason:
            skipped[config.name] = reason
            continue
        for n in range(1, len(config.rungs) + 1):
            rungs = config.rungs[:n]
            if rungs not in cells:
                cells[rungs] = _parity_cell(scenario, device, rungs, threads, rungs in selected)
    if not cells:
        raise SelectionError(f"scenario {scenario.name}: no config can run here: {next(iter(skipped.values()))}")
    return ParityJob(cells=tuple(cells.values()), steps=steps), skipped


def _parity_cell(
    scenario: Scenario, device: Device, rungs: tuple[str, ...], threads: int, in_scenario: bool
) -> ParityCell:
    """Return a config's cell and the config that it is compared with."""
    name = "+".join(rungs)
    without = "+".join(rungs[:-1]) or (None if name == BASE else BASE)
    size: dict[str, Any] = {"batch_size": _PARITY_BATCH, "image_size": _PARITY_IMAGE, "n_classes": _PARITY_CLASSES}
    network = {"scenario": scenario.name, "model": scenario.models[0], "variant": scenario.model.variant}
    settings: dict[str, Any] = {"threads": threads, "seed": 0, "cudnn": scenario.cudnn}
    cell = _cell(rungs, device=device.name, input=Input(kind="own"), **settings, **network, **size)
    return ParityCell(cell=cell, rung=rungs[-1], without=without, in_scenario=in_scenario)


def _cell(rungs: tuple[str, ...], **fields: Any) -> Cell:
    """Return a cell of the default backend with these settings, and the defaults of `train`, `cudnn` and `measure`."""
    # Tolerances are declared at the learning rate of TrainSettings(), 0.01.
    unmeasured: dict[str, Any] = {"train": TrainSettings(), "cudnn": CudnnSettings(), "measure": MeasureSettings()}
    return Cell(backend=DEFAULT_BACKEND, config="+".join(rungs), rungs=rungs, **{**unmeasured, **fields})
