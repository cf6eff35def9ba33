"""The roofline model: rates of a step's parts, compared with the ceilings of the machine.

FLOPs and bytes are those of `tcbench.engine.work`. A multiply-accumulate counts as two operations. Bytes are the least
traffic, with every operand read or written once. Both depend only on the model and on the stored type (16 or 32 bits).
If a backend moves more than that, its rate is below the roof."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tcbench.analysis.bottleneck import Bottleneck, explain_records, explain_timeline
from tcbench.analysis.phases import phase_costs, step_s
from tcbench.analysis.summary import CellSummary, base_config, declared_work
from tcbench.core.groups import grouped, summed
from tcbench.core.record import Cell, Measurement, Record
from tcbench.core.timeline import Timeline
from tcbench.engine.api import Ceilings, Reached, known_models, layer_works, model_of

UPDATE_FLOPS = 6
"""FLOPs of the update per parameter: g + decay * w, momentum * v - rate * g, w + v."""
UPDATE_BYTES = 20
"""Least bytes of the update per parameter: read g, read and write v and w, all in float32.

In mixed precision g and the stored weight have two bytes each and the master weight has four, which is the same sum."""


UNKNOWN = Ceilings("", {"fp32": math.inf}, math.inf, "not known", measured=False)
"""The ceilings of a device before they are known."""

ConfigPrecision = Literal["fp32", "tf32", "fp16", "bf16"]


def precision_of(rungs: Iterable[str]) -> ConfigPrecision:
    """Return the precision in which convolutions compute with these rungs."""
    rungs = set(rungs)
    halves: tuple[ConfigPrecision, ...] = ("fp16", "bf16", "tf32")
    return next((name for name in halves if name in rungs), "fp32")


@dataclass(frozen=True)
class WorkPart:
    """The work of a layer in one phase, or of a whole phase: FLOPs and least bytes for a batch. `time_s` is None if it
    was not measured."""

    name: str
    phase: str
    flops: int
    bytes: int
    time_s: float | None = None

    @property
    def intensity(self) -> float:
        """The arithmetic intensity in FLOP per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def flops_s(self) -> float | None:
        """The achieved FLOP/s."""
        return self.flops / self.time_s if self.time_s else None

    def share_of_roof(self, ceilings: Ceilings, precision: ConfigPrecision) -> float | None:
        """Return the achieved rate over the rate that the ceilings allow.

        None without FLOPs or a time, or if the part ran faster than the ceilings allow, as with cached operands."""
        least_s = self.least_s(ceilings, precision) if self.flops else None
        return least_s / self.time_s if least_s and self.time_s else None

    def least_s(self, ceilings: Ceilings, precision: ConfigPrecision) -> float | None:
        """Return the least time in seconds that the ceilings allow; None if the ceilings are unknown or the part took
        less time."""
        least_s = ceilings.least_s(self.flops, self.bytes, precision)
        return least_s if least_s and (self.time_s is None or least_s <= self.time_s) else None


_BEYOND_CACHES = 256 * 2**20
"""A size in bytes of which no cache holds the greater part."""


@dataclass(frozen=True)
class CellRoofline:
    """A cell's phases and layers, and the ceilings of its device."""

    summary: CellSummary
    ceilings: Ceilings
    phases: tuple[WorkPart, ...]
    layers: tuple[WorkPart, ...]
    bottleneck: Bottleneck | None = None

    @property
    def precision(self) -> ConfigPrecision:
        """The precision in which convolutions compute."""
        return precision_of(self.summary.cell.rungs)

    @property
    def timed(self) -> list[tuple[WorkPart, ConfigPrecision]]:
        """The parts that have a time, with the precision in which they compute; the update always uses float32."""
        parts = (part for part in (*self.phases, *self.layers) if part.time_s is not None)
        return [(part, "fp32" if part.name == "update" else self.precision) for part in parts]

    def reached_rates(self) -> Iterator[tuple[str, Reached]]:
        """Yield the rates that timed parts reached: arithmetic by precision, and memory. Memory counts only for whole
        phases that move more than caches hold."""
        for part, precision in self.timed:
            if not part.time_s:
                continue
            is_phase = part.name == part.phase
            source = f"{part.name if is_phase else f'{part.name} ({part.phase})'} of {self.summary.cell.label}"
            yield precision, Reached(part.flops / part.time_s, source)
            if is_phase and part.bytes > _BEYOND_CACHES:
                yield Ceilings.MEMORY, Reached(part.bytes / part.time_s, source)


def highest_rates(rooflines: Iterable[CellRoofline]) -> dict[str, Reached]:
    """Return the highest rate that any part of these cells reached, by precision and for memory.

    Cells with doubtful times, and cells whose work is declared by a step's author, do not count."""
    reliable = (r for r in rooflines if not ((r.bottleneck and r.bottleneck.doubt) or r.summary.cell.is_own))
    groups = grouped(reached for roofline in reliable for reached in roofline.reached_rates())
    return {name: max(rates, key=lambda reached: reached.rate) for name, rates in groups.items()}


@functools.lru_cache(256)
def layer_parts(cell: Cell) -> tuple[WorkPart, ...]:
    """Return the work of each layer of a cell's network, forward and then backward. Layers are named as in timelines:
    "block3.c/conv"."""
    return tuple(
        WorkPart(name, phase, sum(work.flops for work in works), sum(work.bytes for work in works))
        for phase, name, works in layer_works(cell)
    )


def phase_parts(cell: Cell, layers: Sequence[WorkPart] | None = None) -> tuple[WorkPart, ...]:
    """Return the work of the phases forward, backward and update, and of "replay", the sum of all three. `layers` are
    the cell's `layer_parts`, if the caller has them."""
    layers = layer_parts(cell) if layers is None else layers
    parameters = known_models()[cell.model].parameters(cell.n_classes)
    by_phase = {
        phase: (sum(p.flops for p in layers if p.phase == phase), sum(p.bytes for p in layers if p.phase == phase))
        for phase in ("forward", "backward")
    }
    by_phase["update"] = UPDATE_FLOPS * parameters, UPDATE_BYTES * parameters
    by_phase["replay"] = sum(f for f, _ in by_phase.values()), sum(b for _, b in by_phase.values())
    return tuple(WorkPart(phase, phase, flops, n_bytes) for phase, (flops, n_bytes) in by_phase.items())


def cell_roofline(
    summary: CellSummary, records: Sequence[Record], ceilings: Ceilings, timelines: Sequence[Timeline] = ()
) -> CellRoofline:
    """Return a cell's phases with their times from records, and its layers with times from timelines of the cell.

    On a CPU, a phase's time is the host's. On a GPU it is the device's, including its waits for the host, so rates are
    lower than those of kernels. Layers have times on a CPU only, because on a GPU they cover launches, not work."""
    cell = summary.cell
    timed = [t.spans_in("host", "layer") for t in timelines if t.label == cell.label and not t.spans_in("gpu")]
    steps = sum(len({span.step for span in spans}) for spans in timed)
    spent_s = summed(((s.phase, s.name), s.duration_s) for spans in timed for s in spans if s.phase is not None)
    layer_s = {part: seconds / steps for part, seconds in spent_s.items()}
    untimed = layer_parts(cell) if model_of(cell) else ()
    layers = tuple(replace(part, time_s=layer_s.get((part.phase, part.name))) for part in untimed)
    measured = [record.measurement for record in records if record.measurement]
    costs = phase_costs(measured)
    times_s = {cost.name: cost.host_s if cost.device_s is None else cost.device_s for cost in costs}
    times_s |= {WHOLE: step_s(measured)} if measured else {}
    parts = phase_parts(cell) if model_of(cell) else declared_parts(measured[0])
    phases = tuple(replace(part, time_s=times_s[part.name]) for part in parts if part.name in times_s)
    profiled = [record for record in records if record.measurement and record.measurement.profiled_steps]
    return CellRoofline(summary, ceilings, phases, layers, explain_records(profiled) if profiled else None)


def base_and_fastest(rooflines: Sequence[CellRoofline]) -> list[tuple[CellRoofline, CellRoofline]]:
    """Return pairs of the base and the fastest cell of each precision, for each batch size of each setting. If the base
    config was not measured, the base is the first cell with the fewest rungs."""
    name = base_config(cell.summary for cell in rooflines)
    groups = grouped(((cell.summary.setting, cell.summary.cell.batch_size), cell) for cell in rooflines)
    pairs: list[tuple[CellRoofline, CellRoofline]] = []
    for cells in groups.values():
        base = min(cells, key=lambda cell: (cell.summary.cell.config != name, len(cell.summary.cell.rungs)))
        by_rate = sorted(cells, key=lambda cell: cell.summary.images_per_s.value if cell.summary.images_per_s else 0.0)
        fastest = {cell.precision: cell for cell in by_rate}  # the last cell of a precision replaces the others
        pairs += [(base, fastest[precision]) for precision in dict.fromkeys(cell.precision for cell in cells)]
    return pairs


def worth_showing(parts: Iterable[WorkPart]) -> list[WorkPart]:
    """Return the parts that the chart can show: those with FLOPs, bytes and a rate."""
    return [p for p in parts if p.flops and p.bytes and p.flops_s is not None and math.isfinite(p.flops_s)]


WHOLE = "whole step"
"""The name of the part for a whole step whose author declares its work."""


def declared_parts(measured: Measurement) -> tuple[WorkPart, ...]:
    """Return the phases with declared work, and the whole step; nothing if the step's author declares none."""
    phases = [WorkPart(w.phase, w.phase, round(w.flops), round(w.bytes)) for w in measured.declared or () if w.phase]
    flops, n_bytes = declared_work(measured)
    return (*phases, WorkPart(WHOLE, WHOLE, round(flops), round(n_bytes))) if flops or n_bytes else ()


@dataclass(frozen=True)
class PartCost:
    """The cost of a layer in one phase, or of a phase or kernel without known layers.

    `share` is its share of a step, `bound` the ceiling that limits it, and `of_ceiling` the share of that ceiling that
    it reached. They are None if its work or the ceilings are unknown; `of_ceiling` also if it ran faster than memory
    allows, because of caches."""

    part: WorkPart
    share: float
    bound: Literal["arithmetic", "memory"] | None = None
    of_ceiling: float | None = None


def costliest(timeline: Timeline, ceilings: Ceilings | None) -> tuple[PartCost, ...]:
    """Return the costs of all parts of a step, the longest first: GPU time on a GPU, host time on a CPU.

    Without `ceilings` (None), the bounds of parts are unknown. Raises SelectionError for a timeline without steps."""
    record = timeline.record
    step = explain_timeline(timeline)
    spent = summed(
        ((span.phase, (span.layer or span.name) if step.on_gpu else span.name), span.duration_s / step.steps)
        for span in (timeline.spans_in("gpu") if step.on_gpu else timeline.spans_in("host", "layer"))
        if span.phase is not None
    )
    with_layers = {phase for phase, _ in spent}
    for phase in step.phases:
        if phase.name not in with_layers:
            spent[phase.name, phase.name] = (phase.device_s if step.on_gpu else phase.host_s) or 0.0
    works: dict[tuple[str, str], WorkPart] = {}
    if record is not None:
        parts = declared_parts(record.measurement) if record.measurement else ()
        if model_of(record.cell):
            layers = layer_parts(record.cell)
            parts = (*layers, *phase_parts(record.cell, layers))
        works = {(part.phase, part.name): part for part in parts}
    costs = []
    for (phase_name, name), time_s in sorted(spent.items(), key=lambda pair: -pair[1]):
        part = replace(works.get((phase_name, name)) or WorkPart(name, phase_name, 0, 0), time_s=time_s)
        cost = PartCost(part, time_s / step.step_s)
        if record is not None and ceilings is not None and part.bytes:
            precision = "fp32" if name == "update" else precision_of(record.cell.rungs)
            least_s = part.least_s(ceilings, precision)
            bound: Literal["arithmetic", "memory"]
            bound = "memory" if part.intensity < ceilings.ridge(precision) else "arithmetic"
            cost = replace(cost, bound=bound, of_ceiling=least_s and least_s / time_s)
        costs.append(cost)
    return tuple(costs)
