"""`tcbench numerics`: whether fp16 and bf16 train like fp32, many ranks like one, and configs as their rungs
declare."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcbench.core.errors import SelectionError
from tcbench.show import options
from tcbench.show.app import command

if TYPE_CHECKING:
    from tcbench.core.record import Selection

TIMEOUT_S = 7200.0
"""Default time limit of a run in seconds."""


def loss_scale(text: str | None) -> float | None:
    """Return the value of --scale: a power of two, as "1024" or "2^10". Raises SelectionError."""
    if text is None:
        return None
    power = re.fullmatch(r"\s*2\^(-?[0-9]{1,3})\s*", text, re.ASCII)
    number = re.fullmatch(r"\s*[0-9]{1,30}(\.[0-9]{1,30})?\s*", text, re.ASCII)
    scale = 2.0 ** int(power[1]) if power else float(text) if number else 0.0
    if not 2.0**-20 <= scale <= 2.0**60 or math.frexp(scale)[0] != 0.5:  # a power of two has the mantissa 0.5
        shown = text.strip() if len(text) < 30 else f"{text.strip()[:27]}..."
        raise SelectionError(f"--scale {shown}: expected a power of two from 2^-20 to 2^60, such as 1024 or 2^10")
    return scale


@command("Compare training in fp16 and bf16 with fp32; count lost gradients.")
@options.selects("scenario device")
def numerics(
    *,
    rungs: bool = options.CELLS.option("--rungs", "Check each config of the scenario against its rungs' tolerances."),
    ranks: int | None = options.CELLS.option(
        "--ranks N",
        "Train with N ranks of batch --bs, compared with one rank at the same global batch. "
        "Default: one rank, in several precisions.",
        within=(2, 4096),
    ),
    second_order: bool = options.CELLS.option(
        "--second-order",
        "Count the steps that SGD and K-FAC (the rung kfac) need to reach a loss at a large batch. "
        "Defaults with it: --bs 1024, --steps 24, --seeds 3.",
    ),
    config: list[str] | None = options.CELLS.option(
        "--config NAME",
        "With --rungs: configs by name or glob, or rungs joined by '+'; separate with commas or repeat "
        "--config. Default: all.",
        takes=options.CONFIGS,
        read=options.config_names,
        complete=options.completion("complete_config"),
    ),
    chosen: Selection,
    data: Path | None = options.CELLS.option(
        "--data FOLDER",
        "Train the scenario's model on a folder with one folder of JPEGs per class; one image in ten is "
        "held out for testing. Default: generated images, a small ResNet.",
        takes="a folder of class folders of JPEGs",
    ),
    bs: int | None = options.CELLS.option(
        "--bs N", "Batch size. Default: 32; with --data the scenario's first.", within=(2, 65536)
    ),
    image_size: int | None = options.CELLS.option(
        "--image-size PIXELS", "Side of the square images. Default: 16; with --data the scenario's.", within=(8, 8192)
    ),
    seeds: int | None = options.MEASURING.option(
        "--seeds N", "Runs of each technique, each from its own initial weights. Default: 5.", within=(1, 1000)
    ),
    steps: int | None = options.MEASURING.option(
        "--steps N", "Steps of each run. Default: 240; with --rungs 5.", within=(1, 1_000_000)
    ),
    learning_rate: float | None = options.MEASURING.option(
        "--lr RATE",
        "Learning rate. Default: 0.001; with --ranks 0.2 for one rank.",
        takes="a rate above 0 and up to 1000000, such as 0.001",
        holds=lambda x: 0 < x <= 1e6,
    ),
    scale: str | None = options.MEASURING.option(
        "--scale 2^K",
        "The static loss scale. Default: the middle of the range that the gradients show to be safe.",
        takes="a power of two from 2^-20 to 2^60",
        read=loss_scale,
    ),
    global_batch: int | None = options.MEASURING.option(
        "--global-batch N",
        "Images that the loss is averaged over; this run is one of the replicas. Default: slide 34's 131072.",
        within=(2, 10**9),
    ),
    margin: float | None = options.MEASURING.option(
        "--margin SHARE",
        "Differences of test loss and accuracy up to this share count as equal. Default: 0.02; with --ranks "
        "0.1 for the loss.",
        takes="a share between 0 and 1, such as 0.02",
        holds=lambda x: 0 < x < 1,
    ),
    threads: int | None = options.MEASURING.option(
        "--threads N", "Threads of each run. Default: 1; with --data or --rungs all usable cores.", within=(1, 4096)
    ),
    timeout: float | None = options.MEASURING.option(
        "--timeout SECONDS",
        "End a run that takes longer. Default: 7200.",
        takes="seconds above 0 and up to 1000000",
        holds=lambda x: 0 < x <= 1e6,
    ),
    out: Path = options.out_option("Document and charts"),
    details: bool = options.DETAILS,
    quiet: bool = options.QUIET,
    format_: options.TableOrJson = options.FORMAT,
) -> None:
    """Train in fp32, in bf16, and in fp16 with both, one or none of loss scaling and fp32 master weights, all from the
    same weights on the same batches. Count the gradients that float16 loses. Judge which of them train like fp32, by an
    equivalence test over seeds. With --ranks, compare many ranks with one rank at the same global batch: with linear
    scaling of the learning rate and gradual warm-up, without warm-up, and without scaling.
    With --second-order, count the steps that SGD and K-FAC need to reach a loss at a large batch.

    Exit code: 0 whatever the verdicts; 2 for a mistake in the command; 3 if a run failed; 130 if interrupted. With
    --rungs, 1 if a config is farther off than its rungs declare.

    Examples:
    tcbench numerics                          generated images, a small ResNet: a few minutes on two cores
    tcbench numerics --scale 2^40             your own static loss scale
    tcbench numerics --global-batch 32        a single machine: gradients are larger
    tcbench numerics --data /data/imagenet/train --bs 32 --device cuda:0
    tcbench numerics --ranks 4                 linear scaling and warm-up: do four ranks train like one?
    tcbench numerics --second-order           SGD and K-FAC at 1,024 images a step: which needs fewer steps?
    tcbench numerics --rungs                  every config against the one without its last rung"""
    from tcbench.commands.numerics import plan
    from tcbench.commands.numerics.call import ProgramOptions
    from tcbench.core.record import DEFAULT_BACKEND
    from tcbench.engine.api import device_for, kind_of, split_images
    from tcbench.hardware import machine
    from tcbench.run import scenario
    from tcbench.run.plan import refuse

    static_scale = loss_scale(scale)
    target = device_for(chosen.device, [DEFAULT_BACKEND])
    if kind_of(target.name).simulates is not None:
        raise SelectionError(f"--device {target.name}: a simulated device computes no numbers; --device cpu works")
    refuse(target, ("chainer",))
    loaded = scenario.load(chosen.scenario or ("cpu" if target.kind == "cpu" else "naruse2018"))
    program = ProgramOptions(target, timeout or TIMEOUT_S, out, quiet, format_ == "json", details)
    one_rank = {"--scale": scale, "--global-batch": global_batch}
    precisions = {"--data": data, "--lr": learning_rate, "--margin": margin, "--ranks": ranks, **one_rank}
    if rungs:
        training = {"--bs": bs, "--image-size": image_size, "--seeds": seeds, "--second-order": second_order or None}
        _refuse_options(training | precisions, "with --rungs", "tolerances are declared for its fixed settings")
        from tcbench.commands.numerics.parity import check_configs

        check_configs(program, loaded, options.config_names(config), steps or plan.PARITY_STEPS, threads)
        return
    _refuse_options({"--config": config}, "without --rungs", "only --rungs compares configs")
    request = plan.NumericsRequest(
        steps=steps,
        batch_size=bs,
        image_size=image_size,
        learning_rate=learning_rate,
        global_batch=plan.GLOBAL_BATCH if global_batch is None else global_batch,
        data=None if data is None else data.absolute(),
        threads=threads,
        ranks=ranks or 1,
    )
    if second_order:
        why = "both methods train in fp32, each at the best of four learning rates"
        _refuse_options(precisions, "with --second-order", why)
        from tcbench.commands.numerics.training import compare_methods
        from tcbench.core.record import KfacSettings

        large = bs or plan.LARGE_BATCH
        request = replace(request, steps=steps or plan.RACE_STEPS, batch_size=large, global_batch=large)
        setting = plan.training_setting(loaded, target, request, machine.usable_cpus(), None)
        compare_methods(program, setting, loaded.train.kfac or KfacSettings(), seeds or plan.RACE_SEEDS)
        return
    if ranks is not None:
        _refuse_options(one_rank, "with --ranks", "all of its runs are in fp32")
    from tcbench.commands.numerics.judgement import Margins
    from tcbench.commands.numerics.training import train

    images = None if data is None else split_images(data.absolute())
    setting = plan.training_setting(loaded, target, request, machine.usable_cpus(), images)
    margins = None if margin is None else Margins(margin, margin)
    train(program, setting, plan.SEEDS if seeds is None else seeds, static_scale, margins)


def _refuse_options(options: dict[str, Any], mode: str, why: str) -> None:
    """Raise SelectionError if any of these options was given: they have no meaning in this mode."""
    if name := next((name for name, setting in options.items() if setting is not None), None):
        raise SelectionError(f"{name}: has no meaning {mode}: {why}")
