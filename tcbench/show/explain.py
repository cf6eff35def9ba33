"""What `tcbench explain` shows: a table of cells with what holds each back, notes on how to read it, and the JSON.

Also what a timeline says in lines, for whoever shows one.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tcbench.analysis.advice import Gain
from tcbench.analysis.bottleneck import Bottleneck
from tcbench.analysis.explanation import Explanation
from tcbench.core.record import Cell
from tcbench.show.console import config_in_ladder
from tcbench.show.format import milliseconds, size
from tcbench.show.naming import plain

SCHEMA = "tcbench-explain"
SCHEMA_VERSION = 1
"""Of the JSON. History: 1, first form."""


def table(found: Sequence[Explanation]) -> Table:
    """One row per cell, batch size by batch size: its verdict, what each stage needs, and what to try next."""
    with_gpu = any(e.bottleneck is not None and e.bottleneck.on_gpu for e in found)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("batch", justify="right", vertical="bottom")
    table.add_column("config", overflow="fold", min_width=18)
    table.add_column("verdict", no_wrap=True)
    for heading in ("input", "host", *(["GPU"] if with_gpu else []), "step", "images/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("next", overflow="fold")
    table.add_column("at most", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    batch_sizes = list(dict.fromkeys(e.summary.cell.batch_size for e in found))
    for batch_size in batch_sizes:
        above = None
        for place, explanation in enumerate(e for e in found if e.summary.cell.batch_size == batch_size):
            cell = explanation.summary.cell
            name = Text(plain(config_in_ladder(cell, above)))
            above = cell
            table.add_row(str(batch_size) if place == 0 else "", name, *_figures(explanation, with_gpu))
        if batch_size != batch_sizes[-1]:
            table.add_row()
    return table


def _figures(explanation: Explanation, with_gpu: bool) -> tuple[Text, ...]:
    found = explanation.bottleneck
    if found is None:
        return (Text(explanation.summary.status, style="yellow"),)
    needs = found.needs
    input_ = "beside" if needs.input_s is None else milliseconds(needs.input_s)
    gpu = [] if not with_gpu else [Text("" if needs.gpu_s is None else milliseconds(needs.gpu_s))]
    return (
        Text(found.verdict),
        Text(input_),
        Text(milliseconds(needs.host_s)),
        *gpu,
        Text(milliseconds(found.step_s)),
        Text(f"{found.images_per_s:.4g}"),
        *_advice(explanation.advice),
    )


def _advice(gain: Gain | None) -> tuple[Text, ...]:
    if gain is None:
        return (Text("none known", style="dim"),)
    measured = "" if gain.measured_images_per_s is None else f"{gain.measured_images_per_s:.4g}"
    return Text(added(gain)), Text(_rate(gain.images_per_s_at_most)), Text(measured)


def added(gain: Gain) -> str:
    """ "+ nhwc + fused"."""
    return plain("+ " + " + ".join(gain.added))


def _rate(images_per_s: float) -> str:
    return f"{images_per_s:.4g}" if math.isfinite(images_per_s) else "any"


def checks(found: Sequence[Explanation]) -> Table | None:
    """The model against the measurement, for every config that adds rungs to another of the same results."""
    rows = [(e.summary.cell, e.bottleneck, gain) for e in found if e.bottleneck for gain in e.checked]
    # From each config the smallest step up; what lies further is the sum of such steps.
    nearest: dict[Cell, int] = {}
    for cell, _, gain in rows:
        nearest[cell] = min(nearest.get(cell, len(gain.added)), len(gain.added))
    rows = [row for row in rows if len(row[2].added) == nearest[row[0]]]
    if not rows:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("batch", justify="right")
    table.add_column("from", overflow="fold")
    table.add_column("adding", overflow="fold")
    for heading in ("images/s", "at most", "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    for cell, bottleneck, gain in rows:
        measured = Text(f"{gain.measured_images_per_s:.4g}", style="" if gain.holds else "yellow")
        table.add_row(
            str(cell.batch_size),
            Text(plain(cell.config)),
            Text(added(gain)),
            Text(f"{bottleneck.images_per_s:.4g}"),
            Text(_rate(gain.images_per_s_at_most)),
            measured,
        )
    return table


def sentences(found: Sequence[Explanation]) -> list[str]:
    """A line per cell: its verdict with its numbers."""
    told = ((e, e.bottleneck.sentence if e.bottleneck else e.summary.reason or "no profiled pass") for e in found)
    return [plain(f"{e.summary.cell.label}: {words}") for e, words in told]


def notes(found: Sequence[Explanation], ceiling: str | None) -> list[str]:
    """How to read the tables. `ceiling`: whose arithmetic bounds what a rung can gain, None where nobody's does."""
    lines = [
        "input, host, GPU: what each needs per step if it never waited, from the profiled pass; 'beside': made in "
        "threads of its own, and never waited for.",
        "at most: images/s by the pipeline model, if the rung takes away all that it can: a ceiling, no prediction.",
    ]
    if any(e.bottleneck and not e.bottleneck.on_gpu for e in found):
        lines.append("On a CPU the host is the one that computes: host-bound says that computing takes most of a step.")
    if any(e.bottleneck and e.bottleneck.on_gpu for e in found):
        lines.append("GPU: known only where it fills the step; `tcbench profile` shows how long it is busy.")
    lines.append(
        f"What forward and backward cannot go below: their arithmetic at {ceiling}."
        if ceiling
        else "What forward and backward cannot go below is not known here; `tcbench roofline` measures it."
    )
    if any(gain.holds is False for e in found for gain in e.checked):
        lines.append("Measured above the ceiling: the two cells met the machine in different moods.")
    return lines


def lines_of(found: Bottleneck) -> list[str]:
    """What a timeline shows, a fact a line: the verdict, phases, waiting, kernels."""
    lines = [f"{found.label}: {found.sentence}"]
    phases = (
        f"{phase.name} {milliseconds(phase.host_s)}"
        + ("" if phase.device_s is None else f" (GPU {milliseconds(phase.device_s)})")
        for phase in found.phases
    )
    lines.append(f"phases, per step: {', '.join(phases)}; {found.steps} steps of {milliseconds(found.step_s)}")
    if found.io_overlap is not None:
        lines.append(f"input: {found.io_overlap:.0%} of its work happens while something else goes on")
    device = found.device
    if device is None:
        return lines
    idle = device.idle
    lines.append(
        f"GPU: busy {device.busy_share:.0%}; idle, per step: {milliseconds(idle.launching_s)} while the host launches, "
        f"{milliseconds(idle.input_s)} for input, {milliseconds(idle.synchronising_s)} synchronising, "
        f"{milliseconds(idle.other_s)} between"
    )
    if found.waits_for_gpu_s is not None:
        lines.append(f"host: waits {milliseconds(found.waits_for_gpu_s)} per step for the GPU")
    moved = "" if device.copied_bytes is None else f" ({size(round(device.copied_bytes))})"
    lines.append(f"per step: {device.kernels_per_step:.4g} kernels, {device.copies_per_step:.4g} copies{moved}")
    lines += [
        f"  {cost.share:6.1%}  {milliseconds(cost.time_s):>8}  {cost.per_step:6.4g} x  {' '.join(cost.name.split())}"
        for cost in device.costliest
    ]
    return lines


def to_json(found: Sequence[Explanation], ceiling: str | None) -> str:
    """Everything, with units in the names."""
    value = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "cells": [_cell_json(explanation) for explanation in found],
        "arithmetic_bounded_by": ceiling,
        "notes": notes(found, ceiling),
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)


def timelines_json(found: Sequence[Bottleneck]) -> str:
    """The same for timelines."""
    value = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "timelines": [{"label": one.label, "bottleneck": bottleneck_json(one)} for one in found],
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)


def _cell_json(explanation: Explanation) -> dict[str, Any]:
    summary = explanation.summary
    return {
        "machine": summary.machine,
        "config": summary.cell.config,
        "batch_size": summary.cell.batch_size,
        "image_size": summary.cell.image_size,
        "device": summary.cell.device,
        "key": summary.cell.key,
        "status": summary.status,
        "reason": summary.reason,
        "bottleneck": explanation.bottleneck and bottleneck_json(explanation.bottleneck),
        "next": explanation.advice and _gain_json(explanation.advice),
        "gains": [_gain_json(gain) for gain in explanation.gains],
    }


def bottleneck_json(found: Bottleneck) -> dict[str, Any]:
    """A bottleneck with its verdict and sentence; gaps are counted, not listed."""
    value = dataclasses.asdict(found)
    value |= {"verdict": found.verdict, "sentence": found.sentence, "images_per_s": found.images_per_s}
    if found.device is not None:
        value["device"] |= {"busy_share": found.device.busy_share, "gaps": len(found.device.gaps)}
    return value


def _gain_json(gain: Gain) -> dict[str, Any]:
    finite = math.isfinite(gain.images_per_s_at_most)
    return dataclasses.asdict(gain) | {"images_per_s_at_most": gain.images_per_s_at_most if finite else None}
