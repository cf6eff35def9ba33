"""Output of `tcbench explain`: a table of cells with what holds each back, notes on how to read it, and the JSON.

Also a timeline described in lines, for the commands that show one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tcbench.analysis.advice import Gain
from tcbench.analysis.bottleneck import Bottleneck, Needs
from tcbench.analysis.explanation import Explanation
from tcbench.analysis.stats import Interval
from tcbench.core.record import TAKE_ENOUGH, Cell
from tcbench.core.timeline import Timeline
from tcbench.present.document import encoded
from tcbench.present.format import (
    counted,
    doubtful,
    factor,
    listed,
    milliseconds,
    number,
    percent,
    plus_minus,
    rate,
    size,
)
from tcbench.present.naming import code_name, rate_unit, stack_name
from tcbench.present.simulated import heading, is_simulated
from tcbench.present.tables import add_by_batch, ladder_table, many_ranks, open_table

SCHEMA = "tcbench-explain"
SCHEMA_VERSION = 1
"""Of the JSON. History: 1, first form."""


_ROOM = 8
"""Columns for what to try next beside its longest word."""
_UNBOUNDED = 1 << 10


def fits(explanations: Sequence[Explanation], console: Console) -> bool:
    """Whether the whole table stands in a console's columns without cutting words."""
    options = console.options.update(width=_UNBOUNDED)
    return console.measure(table(explanations), options=options).minimum + _ROOM <= console.width


def by_code(explanations: Sequence[Explanation]) -> list[tuple[str, list[Explanation]]]:
    """The cells of each machine, number of threads and code, under what tells these from the others; that is empty
    where all are of one."""
    parts: dict[tuple[str, str, str], list[Explanation]] = {}
    for one in explanations:
        of = one.summary
        name = (of.machine or "unknown machine", counted(of.cell.threads, "thread"), code_name(of.codes))
        parts.setdefault(name, []).append(one)
    telling = [len(set(words)) > 1 for words in zip(*parts, strict=True)]
    return [(", ".join(filter(None, itertools.compress(name, telling))), part) for name, part in parts.items()]


def table(explanations: Sequence[Explanation], *, narrow: bool = False) -> Table:
    """One row per cell, batch size by batch size: its verdict, what each stage needs, and what to try next. `narrow`:
    without what the stages need, and with a rung's figures behind its name."""
    if narrow:
        return _narrow_table(explanations)
    stages = Stages.of(explanations)
    table = ladder_table([e.summary.cell for e in explanations])
    table.add_column("verdict", no_wrap=True)
    for stage in ("input", "host", *stages.headings, "step", rate_unit(e.summary.cell for e in explanations)):
        table.add_column(stage, justify="right", no_wrap=True)
    table.add_column("next", overflow="fold")
    table.add_column("at most", justify="right", no_wrap=True)
    table.add_column(heading(e.summary.environment for e in explanations), justify="right", no_wrap=True)
    add_by_batch(table, ((e.summary.cell, _figures(e, stages)) for e in explanations))
    return table


def _narrow_table(explanations: Sequence[Explanation]) -> Table:
    table = ladder_table([e.summary.cell for e in explanations])
    table.add_column("verdict", no_wrap=True)
    table.add_column(rate_unit(e.summary.cell for e in explanations), justify="right", no_wrap=True)
    table.add_column("next", overflow="fold")
    add_by_batch(table, ((e.summary.cell, _narrow_figures(e)) for e in explanations))
    return table


def _narrow_figures(explanation: Explanation) -> tuple[Text, ...]:
    bottleneck = explanation.bottleneck
    if bottleneck is None:
        return (Text(explanation.summary.status, style="yellow"),)
    gain, ran = explanation.advice, heading([explanation.summary.environment])
    rates = () if gain is None else (("at most", gain.images_per_s_at_most), (ran, gain.measured_images_per_s))
    known = ", ".join(f"{name} {rate(figure)}" for name, figure in rates if figure is not None)
    words = _next(explanation, f": {known}" if known else "")
    return Text(bottleneck.limit), Text(rate(bottleneck.images_per_s)), words


@dataclass(frozen=True)
class Stages:
    """The stages beside input and host that a table of cells has a column for."""

    with_gpu: bool
    with_network: bool

    @staticmethod
    def of(explanations: Iterable[Explanation]) -> Stages:
        """Those that some cell has."""
        known = [one.bottleneck for one in explanations if one.bottleneck is not None]
        return Stages(any(b.on_gpu for b in known), any(b.ranks > 1 for b in known))

    @property
    def headings(self) -> tuple[str, ...]:
        return ("GPU",) * self.with_gpu + ("all-reduce",) * self.with_network

    def needs_s(self, needs: Needs) -> tuple[float | None, ...]:
        """Seconds per step, one for each heading; None where it is not known or there is none."""
        return (needs.gpu_s,) * self.with_gpu + (needs.network_s or None,) * self.with_network


def _figures(explanation: Explanation, stages: Stages) -> tuple[Text, ...]:
    bottleneck = explanation.bottleneck
    if bottleneck is None:
        return (Text(explanation.summary.status, style="yellow"),)
    needs = bottleneck.needs
    input_ = "beside" if needs.input_s is None else milliseconds(needs.input_s)
    return (
        Text(bottleneck.limit),
        Text(input_),
        Text(milliseconds(needs.host_s)),
        *(Text("" if needed_s is None else milliseconds(needed_s)) for needed_s in stages.needs_s(needs)),
        Text(milliseconds(bottleneck.step_s)),
        Text(rate(bottleneck.images_per_s)),
        *_advice(explanation),
    )


def _advice(explanation: Explanation) -> tuple[Text, ...]:
    gain, words = explanation.advice, _next(explanation)
    if gain is None:
        return (words,)
    return words, Text(_rate(gain.images_per_s_at_most)), Text(_rate(gain.measured_images_per_s))


def _next(explanation: Explanation, figures: str = "") -> Text:
    gain = explanation.advice
    words = Text("none known", style="dim") if gain is None else Text(added(gain) + figures)
    if slower := tried_and_slower(explanation):
        words.append(f" ({slower})", style="dim")
    return words


def _rate(images_per_s: float | None) -> str:
    return "" if images_per_s is None else rate(images_per_s)


def added(gain: Gain) -> str:
    """ "+ nhwc + fused"; "without im2col"."""
    return "+ " + " + ".join(gain.added) if gain.added else f"without {listed(gain.removed)}"


def tried_and_slower(explanation: Explanation) -> str:
    """ "slower: + batched 0.86×"; empty where nothing that could be added was tried and is surely slower."""
    tried = [f"{added(gain)} {factor(gain.ratio.value)}" for gain in explanation.slower if gain.ratio]
    return f"slower: {', '.join(tried)}" if tried else ""


def checks(explanations: Sequence[Explanation]) -> Table | None:
    """The model against the measurement, for every config that adds rungs to another of the same results."""
    rows = [(e.summary.cell, e.bottleneck, gain) for e in explanations if e.bottleneck for gain in e.checked]
    # From each config the smallest step up; what lies further is the sum of such steps.
    nearest: dict[Cell, int] = {}
    for cell, _, gain in rows:
        nearest[cell] = min(nearest.get(cell, len(gain.added)), len(gain.added))
    rows = [row for row in rows if len(row[2].added) == nearest[row[0]]]
    if not rows:
        return None
    table = open_table()
    table.add_column("batch", justify="right")
    with_ranks = many_ranks(cell for cell, _, _ in rows)
    if with_ranks:
        table.add_column("ranks", justify="right")
    table.add_column("from", overflow="fold")
    table.add_column("adding", overflow="fold")
    ran = heading(e.summary.environment for e in explanations)
    for title in (rate_unit(cell for cell, _, _ in rows), "at most", ran, "factor"):
        table.add_column(title, justify="right", no_wrap=True)
    for cell, bottleneck, gain in rows:
        table.add_row(
            str(cell.batch_size),
            *([str(cell.ranks)] if with_ranks else []),
            Text(cell.config),
            Text(added(gain)),
            Text(rate(bottleneck.images_per_s)),
            Text(_rate(gain.images_per_s_at_most)),
            Text(_rate(gain.measured_images_per_s)),
            _factor(gain.ratio),
        )
    return table


def _factor(ratio: Interval | None) -> Text:
    """Pale where it may be none."""
    if ratio is None:
        return Text("")
    return Text(f"{factor(ratio.value)} {plus_minus(ratio)}", style="dim" if ratio.holds(1.0) else "")


def sentences(explanations: Sequence[Explanation]) -> list[str]:
    """A line per cell: its verdict with its numbers."""
    lines = []
    for explanation in explanations:
        bottleneck, summary = explanation.bottleneck, explanation.summary
        words = bottleneck.sentence if bottleneck else summary.reason or "no profiled pass"
        lines.append(f"{summary.cell.label}: {words}")
    return lines


def notes(explanations: Sequence[Explanation], ceiling: str | None, *, narrow: bool = False) -> list[str]:
    """Notes on how to read the tables. `ceiling`: the hardware whose arithmetic bounds what a rung can gain; None where
    it is not known. `narrow`: as for `table`."""
    lines = [
        "A wider terminal shows what input and host need per step too; so does --details."
        if narrow
        else "input, host, GPU: time that each needs per step without waiting, from the profiled pass; 'beside': input "
        "is made in its own threads, and no step waits for it."
    ]
    if any(gain.images_per_s_at_most for e in explanations for gain in e.gains):
        lines.append(
            "at most: by the pipeline model, with a rung that saves all the time it can and all else as fast as in the "
            "fastest step; empty where no limit is known."
        )
    if any(e.checked and e.summary.unit == "steps" for e in explanations):
        lines.append(f"factor: ± of a cell with one trial is over its steps; {TAKE_ENOUGH}.")
    if any(e.bottleneck and e.bottleneck.dominant for e in explanations):
        lines.append("On a CPU, which computes itself, the verdict is the phase that takes most of a step.")
    if any(e.bottleneck and e.bottleneck.ranks > 1 for e in explanations):
        lines.append("With many ranks: the needs of the rank that the others wait for; throughput of all of them.")
    if any(e.bottleneck and e.bottleneck.on_gpu and e.bottleneck.needs.gpu_s is None for e in explanations):
        lines.append("GPU: known only where it fills the step; `tcbench profile` shows how long it is busy.")
    if ceiling:
        lines.append(f"Forward and backward cannot be faster than their arithmetic at {ceiling}.")
    evidence: dict[str, list[str]] = {}
    for gain in (e.advice for e in explanations if e.advice and e.advice.evidence):
        evidence.setdefault(gain.evidence, []).append(added(gain))
    lines += [f"{listed(list(dict.fromkeys(names)))}: {words}." for words, names in evidence.items()]
    return lines + doubtful((e.summary.cell.label, e.bottleneck.doubt) for e in explanations if e.bottleneck)


def lines_of(bottleneck: Bottleneck) -> list[str]:
    """A timeline described in lines: the verdict, phases, waiting, kernels."""
    lines = [f"{bottleneck.label}: {bottleneck.sentence}"]
    phases = (
        f"{phase.name} {milliseconds(phase.host_s)}"
        + ("" if phase.device_s is None else f" (GPU {milliseconds(phase.device_s)})")
        for phase in bottleneck.phases
    )
    steps = f"{bottleneck.steps} steps of {milliseconds(bottleneck.step_s)}"
    lines.append(f"phases, per step: {', '.join(phases)}; {steps}")
    if bottleneck.io_overlap is not None:
        lines.append(f"input: {percent(bottleneck.io_overlap, 0)} of its work overlaps with other work")
    device = bottleneck.device
    if device is None:
        return lines
    idle = device.idle
    lines.append(
        f"GPU: busy {percent(device.busy_share, 0)}; idle, per step: {milliseconds(idle.launching_s)} while the host "
        f"launches, {milliseconds(idle.input_s)} for input, {milliseconds(idle.synchronising_s)} synchronising, "
        f"{milliseconds(idle.other_s)} otherwise"
    )
    if bottleneck.waits_for_gpu_s is not None:
        lines.append(f"host: waits {milliseconds(bottleneck.waits_for_gpu_s)} per step for the GPU")
    moved = "" if device.copied_bytes is None else f" ({size(round(device.copied_bytes))})"
    lines.append(f"per step: {number(device.kernels_per_step)} kernels, {number(device.copies_per_step)} copies{moved}")
    lines += [
        f"  {percent(cost.share):>6}  {milliseconds(cost.time_s):>8}  {number(cost.per_step):>6} x  {cost.name}"
        for cost in device.costliest
    ]
    return lines


def to_json(explanations: Sequence[Explanation], ceiling: str | None) -> str:
    """Everything, with units in the names."""
    value = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "cells": [_cell_json(explanation) for explanation in explanations],
        "arithmetic_bounded_by": ceiling,
        "notes": notes(explanations, ceiling),
    }
    return encoded(value)


def timelines_json(timelines: Sequence[Timeline], bottlenecks: Sequence[Bottleneck]) -> str:
    """The same for timelines."""
    value = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "timelines": [
            {"label": timeline.label, "device_name": timeline.device_name, "bottleneck": bottleneck_json(each)}
            for timeline, each in zip(timelines, bottlenecks, strict=True)
        ],
    }
    return encoded(value)


def _cell_json(explanation: Explanation) -> dict[str, Any]:
    summary = explanation.summary
    return {
        "machine": summary.machine,
        "model": summary.cell.model,
        "config": summary.cell.config,
        "batch_size": summary.cell.batch_size,
        "ranks": summary.cell.ranks,
        "image_size": None if summary.cell.is_own else summary.cell.image_size,
        "unit": summary.cell.unit,
        "device": summary.cell.device,
        "simulated": is_simulated(summary.environment),
        "key": summary.cell.key,
        "code": [{"project": one.project, "version": one.version, "commit": one.commit} for one in summary.codes],
        "stack": stack_name(summary.codes) or None,
        "status": summary.status,
        "reason": summary.reason,
        "bottleneck": explanation.bottleneck and bottleneck_json(explanation.bottleneck),
        "next": explanation.advice,
        "gains": explanation.gains,
    }


def bottleneck_json(bottleneck: Bottleneck) -> dict[str, Any]:
    """A bottleneck with its verdict and sentence; gaps are counted, not listed."""
    value = dataclasses.asdict(bottleneck)
    dominant = bottleneck.dominant
    value |= {"dominant_phase": dominant.name if dominant else None, "doubtful": bottleneck.doubt or None}
    value |= {"verdict": bottleneck.verdict, "sentence": bottleneck.sentence, "images_per_s": bottleneck.images_per_s}
    if bottleneck.device is not None:
        value["device"] |= {"busy_share": bottleneck.device.busy_share, "gaps": len(bottleneck.device.gaps)}
    return value
