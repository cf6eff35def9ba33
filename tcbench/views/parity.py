"""What `tcbench numerics --rungs` shows: each config's distances beside its rung's tolerance, and the JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from tcbench.analysis.parity import SLOPE_AT_MOST, Judged
from tcbench.numerics.form import ParityJob
from tcbench.numerics.plan import Skipped

SCHEMA = "tcbench-parity"
SCHEMA_VERSION = 1
"""Of the JSON. History: 1, first form."""


def headline(job: ParityJob) -> str:
    """What was compared, in one line."""
    cell = job.cell
    return (
        f"{job.steps} steps from one seed, {cell.image_size}x{cell.image_size} random images, batch size "
        f"{cell.batch_size}, learning rate {cell.train.learning_rate:g}, on the shape that tolerances are declared on: "
        "ResNet-50's first two stages, shortened."
    )


def table(judged: Sequence[Judged]) -> Table:
    """One row per config; distances are to the config without its last rung, and to fp32."""
    found = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    found.add_column("config", overflow="fold")
    for heading in ("loss", "allowed", "gradient", "update", "allowed", "loss to fp32", "gradient", ""):
        found.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for one in judged:
        run = one.run
        name = run.config if run.without is None or run.rung == run.config else f"{run.without} + {run.rung}"
        if run.to_without is None or run.to_fp32 is None:
            found.add_row(Text(name), *[""] * 7, Text("off", style="red"))
            continue
        allowed = one.tolerance
        found.add_row(
            Text(name),
            _number(run.to_without.loss),
            "" if allowed is None else _number(allowed.loss),
            _number(run.to_without.gradient),
            _number(run.to_without.update),
            "" if allowed is None else _number(allowed.update),
            _number(run.to_fp32.loss),
            _number(run.to_fp32.gradient),
            Text("off", style="red") if one.off else Text("ok", style="green"),
        )
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.1e}"


def reasons(judged: Sequence[Judged]) -> list[str]:
    """What is off, a line each."""
    return [f"{one.run.config}: off: {one.off}" for one in judged if one.off is not None]


def notes(judged: Sequence[Judged], skipped: Sequence[Skipped], slope: float | None) -> list[str]:
    """How to read the table, and what is not in it."""
    lines = [
        "Largest relative distance of a step's loss, relative L2 distance of the first step's gradients and of what "
        "training did to all parameters: to the config without the last rung (fp32: to float64), beside what that rung "
        "declares. A rung that declares bit-identical is allowed 0.",
    ]
    if any(one.says.startswith("same batches") for one in judged):
        lines.append(
            "Input rungs (dali, opencv) are fed the same batches as the others here, so they may change nothing."
        )
    if slope is not None:
        word = "ok" if slope <= SLOPE_AT_MOST else "off"
        lines.append(
            f"float64's gradient is {slope:.1e} from the loss's own slope (allowed {SLOPE_AT_MOST:g}): {word}."
        )
    lines += [f"{one.config}: skipped: {one.reason}" for one in skipped]
    return lines


def to_json(job: ParityJob, judged: Sequence[Judged], skipped: Sequence[Skipped], slope: float | None) -> str:
    """Everything."""

    def run_json(one: Judged) -> dict[str, Any]:
        allowed = one.tolerance
        return {
            **msgspec.to_builtins(one.run),
            "allowed_loss": None if allowed is None else allowed.loss,
            "allowed_update": None if allowed is None else allowed.update,
            "ok": one.off is None,
            "off": one.off,
        }

    value = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "steps": job.steps,
        "ok": all(one.off is None for one in judged) and slope is not None and slope <= SLOPE_AT_MOST,
        "slope_error": slope,
        "configs": [run_json(one) for one in judged],
        "skipped": [{"config": one.config, "reason": one.reason} for one in skipped],
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
