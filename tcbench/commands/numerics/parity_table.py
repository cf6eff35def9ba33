"""The output of `tcbench numerics --rungs`: each config's distances with its rung's tolerance, and JSON."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.text import Text

from tcbench.commands.numerics.parity_judgement import JudgedRun, optimizer_at_most
from tcbench.core.numerics import ParityJob
from tcbench.show.document import document, fields
from tcbench.show.format import counted
from tcbench.show.tables import COUNT, Column, Table

STORAGES = ("float32", "float16", "bfloat16")
"""Data types in which a config may store activations."""


def headline(job: ParityJob) -> str:
    """Return the setting of the comparison, in one line."""
    cell = job.cell
    return (
        f"{job.steps} steps from one seed, {cell.image_size}x{cell.image_size} random images, batch size "
        f"{cell.batch_size}, learning rate {cell.train.learning_rate:g}, on the network that tolerances are declared "
        "for: ResNet-50's first two stages, shortened."
    )


_FIGURES = ("loss", "allowed", "gradient", "allowed", "update", "allowed", "loss to fp32", "gradient")


def table(judged: Sequence[JudgedRun]) -> Table[JudgedRun]:
    """Return a table with a row per config: its distances to the config without its last rung, and to fp32."""
    return Table(
        (
            Column[JudgedRun]("config", _name),
            *(Column[JudgedRun](heading, _figure(place), COUNT) for place, heading in enumerate(_FIGURES)),
            Column[JudgedRun]("", lambda config: Text("off", "red") if config.off else Text("ok", "green")),
        ),
        judged,
    )


def _name(config: JudgedRun) -> str:
    """Return a config as the one without its last rung, and that rung: `fp32 + nhwc`."""
    run = config.run
    return run.config if run.without is None or run.rung == run.config else f"{run.without} + {run.rung}"


def _figure(place: int) -> Callable[[JudgedRun], str]:
    """Return a function that returns one of a config's figures."""
    return lambda config: _figures(config)[place]


def _figures(config: JudgedRun) -> Sequence[str]:
    """Return the figures of a config, in the order of `_FIGURES`; empty strings if it was not compared."""
    run, allowed = config.run, config.tolerance
    if run.to_without is None or run.to_fp32 is None:
        return [""] * len(_FIGURES)
    return (
        _number(run.to_without.loss),
        _allowed(allowed.loss),
        _number(run.to_without.gradient),
        "" if run.to_without.gradient is None else _allowed(allowed.gradient),
        _number(run.to_without.update),
        _allowed(allowed.update),
        _number(run.to_fp32.loss),
        _number(run.to_fp32.gradient),
    )


def _number(distance: float | None) -> str:
    return "-" if distance is None else "0" if distance == 0 else f"{distance:.1e}"


def _allowed(tolerance: float | None) -> str:
    return "-" if tolerance is None else f"{tolerance:g}"


def off_lines(judged: Sequence[JudgedRun]) -> list[str]:
    """Return a line for each config that is off."""
    return [f"{config.run.config}: off: {config.off}" for config in judged if config.off is not None]


def summary(judged: Sequence[JudgedRun]) -> str:
    """Return the last line, which says how many configs are off."""
    n_off = len(off_lines(judged))
    word = f"{n_off} off" if n_off else "all within their tolerances"
    return f"{counted(len(judged), 'config')}: {word}."


def notes(judged: Sequence[JudgedRun], skipped: Mapping[str, str]) -> list[str]:
    """Return notes that explain the table and name what is missing from it."""
    lines = [
        "Distances to the config without the last rung (fp32: to float64), each with the rung's tolerance. loss: the "
        "largest relative distance of a step's loss. gradient: the relative L2 distance at the first weights, of the "
        "parameter that is farthest. update: the same of what training changed in all parameters. A bit-identical rung "
        "is allowed 0."
    ]
    if any(config.same_batches for config in judged):
        lines.append(
            "Input rungs (dali, opencv) are fed the same batches as the others here, so they may change nothing."
        )
    held = [(config.run.to_without, config.tolerance) for config in judged if config.run.to_without]
    lengths = [(d.length, t.length) for d, t in held if d.length is not None and t.length]
    if lengths:
        worst, allowed = max(length for length, _ in lengths), sorted({most for _, most in lengths})
        lines.append(
            f"With 16-bit storage, the length of a kind of parameter's gradient differs by up to {worst:.1e} (allowed "
            f"{' or '.join(f'{most:g}' for most in allowed)})."
        )
    distances = []
    for storage in STORAGES:
        runs = [config.run.optimizer_distance for config in judged if config.run.storage == storage]
        if far := [distance for distance in runs if distance is not None]:
            distances.append(f"{max(far):.1e} in {storage} (allowed {optimizer_at_most(storage):g})")
    if distances:
        lines.append(f"Distance of updates from SGD's in float64, from the same gradients: {', '.join(distances)}.")
    lines.append("Each rung's dtype, layout, fused operations, optimizer and graph are checked in its first steps.")
    lines += [f"{config}: skipped: {reason}" for config, reason in skipped.items()]
    return lines


def to_json(job: ParityJob, judged: Sequence[JudgedRun], skipped: Mapping[str, str]) -> str:
    """Return everything as JSON. Version 1 also had `reference` and `slope_error`, a check of our own operations."""

    def run_json(config: JudgedRun) -> dict[str, Any]:
        """Return one config's distances, tolerances and verdict."""
        return {
            **msgspec.to_builtins(config.run),
            "half": config.run.storage != "float32",
            **fields(config.tolerance, "allowed_loss=loss allowed_gradient=gradient allowed_length=length"),
            **fields(config.tolerance, "allowed_update=update"),
            "allowed_optimizer": optimizer_at_most(config.run.storage),
            "ok": config.off is None,
            "off": config.off,
        }

    return document(
        "tcbench-parity",
        2,
        steps=job.steps,
        ok=not off_lines(judged),
        configs=list(map(run_json, judged)),
        skipped=[{"config": config, "reason": reason} for config, reason in skipped.items()],
    )
