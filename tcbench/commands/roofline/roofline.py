"""The roofline: how fast a step's parts run against the machine's ceilings (`tcbench.engine.accelerators.ceilings`).
Pure functions.

FLOPs and bytes are those of `tcbench.engine.work`: a multiply-accumulate is two operations, and the bytes are
the least traffic, every operand read or written once. They depend on the model and on what is stored (16 or 32 bits),
not on how a backend goes about it: what it moves beyond that shows as a rate below the roof.
"""

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
"""Per parameter: g + decay * w, momentum * v - rate * g, w + v."""
UPDATE_BYTES = 20
"""Per parameter, at least: read g, read and write v and w in float32. In mixed precision g and the stored weight have
two bytes each and the master weight has four: the same sum."""


UNKNOWN = Ceilings("", {"fp32": math.inf}, math.inf, "not known", measured=False)
"""The ceilings of a device before they are known."""

ConfigPrecision = Literal["fp32", "tf32", "fp16", "bf16"]


def precision_of(rungs: Iterable[str]) -> ConfigPrecision:
    """The arithmetic of convolutions with a config's rungs."""
    rungs = set(rungs)
    halves: tuple[ConfigPrecision, ...] = ("fp16", "bf16", "tf32")
    return next((name for name in halves if name in rungs), "fp32")


@dataclass(frozen=True)
class WorkPart:
    """A layer's work in one phase, or a whole phase: FLOPs and least bytes for a batch; `time_s` where it was
    measured."""

    name: str
    phase: str
    flops: int
    bytes: int
    time_s: float | None = None

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def flops_s(self) -> float | None:
        return self.flops / self.time_s if self.time_s else None

    def share_of_roof(self, ceilings: Ceilings, precision: ConfigPrecision) -> float | None:
        """The achieved rate over what is attainable at this intensity; None where no limit is known of it, as of a
        layer that found its operands in a cache."""
        least_s = self.least_s(ceilings, precision) if self.flops else None
        return least_s / self.time_s if least_s and self.time_s else None

    def least_s(self, ceilings: Ceilings, precision: ConfigPrecision) -> float | None:
        """The least time under the roof; None where no limit is known, or it took less."""
        least_s = ceilings.least_s(self.flops, self.bytes, precision)
        return least_s if least_s and (self.time_s is None or least_s <= self.time_s) else None


_BEYOND_CACHES = 256 * 2**20
"""Bytes of which no cache holds most."""


@dataclass(frozen=True)
class CellRoofline:
    """One cell under its roof: phases and layers."""

    summary: CellSummary
    ceilings: Ceilings
    phases: tuple[WorkPart, ...]
    layers: tuple[WorkPart, ...]
    bottleneck: Bottleneck | None = None

    @property
    def precision(self) -> ConfigPrecision:
        return precision_of(self.summary.cell.rungs)

    @property
    def timed(self) -> list[tuple[WorkPart, ConfigPrecision]]:
        """Every part that has a time, with the precision that it computes in: the update's is float32 always."""
        parts = (part for part in (*self.phases, *self.layers) if part.time_s is not None)
        return [(part, "fp32" if part.name == "update" else self.precision) for part in parts]

    def reached(self) -> Iterator[tuple[str, Reached]]:
        """The rate of each part that has a time: of arithmetic by precision; of memory where a whole phase moves more
        than a cache holds."""
        for part, precision in self.timed:
            if not part.time_s:
                continue
            whole = part.name == part.phase
            by = f"{part.name if whole else f'{part.name} ({part.phase})'} of {self.summary.cell.label}"
            yield precision, Reached(part.flops / part.time_s, by)
            if whole and part.bytes > _BEYOND_CACHES:
                yield Ceilings.MEMORY, Reached(part.bytes / part.time_s, by)


def fastest(rooflines: Iterable[CellRoofline]) -> dict[str, Reached]:
    """The highest rate that any part of these ran at, of each kind of arithmetic and of memory. Neither doubtful times
    nor work that a step's author declares tell one."""
    sure = (one for one in rooflines if not ((one.bottleneck and one.bottleneck.doubt) or one.summary.cell.is_own))
    every = grouped(reached for one in sure for reached in one.reached())
    return {name: max(rates, key=lambda reached: reached.rate) for name, rates in every.items()}


@functools.lru_cache(256)
def layer_parts(cell: Cell) -> tuple[WorkPart, ...]:
    """Return every layer of the cell's model, forward and then backward, named as in timelines: "block3.c/conv"."""
    return tuple(
        WorkPart(name, phase, sum(work.flops for work in works), sum(work.bytes for work in works))
        for phase, name, works in layer_works(cell)
    )


def phase_parts(cell: Cell, layers: Sequence[WorkPart] | None = None) -> tuple[WorkPart, ...]:
    """Forward, backward, update; `replay` is all three."""
    layers = layer_parts(cell) if layers is None else layers
    parameters = known_models()[cell.model].parameters(cell.n_classes)
    by_phase = {
        phase: (sum(p.flops for p in layers if p.phase == phase), sum(p.bytes for p in layers if p.phase == phase))
        for phase in ("forward", "backward")
    }
    by_phase["update"] = UPDATE_FLOPS * parameters, UPDATE_BYTES * parameters
    by_phase["replay"] = sum(f for f, _ in by_phase.values()), sum(b for _, b in by_phase.values())
    return tuple(WorkPart(phase, phase, flops, n_bytes) for phase, (flops, n_bytes) in by_phase.items())


def roofline(
    summary: CellSummary, records: Sequence[Record], ceilings: Ceilings, timelines: Sequence[Timeline] = ()
) -> CellRoofline:
    """A cell's phases with their times in its records (`phase_costs`), and its layers, with times where a timeline of
    the cell (by its label) has them.

    A phase's time is the host's on a CPU; on a GPU the device's, which holds what the device waits for the host, so
    that the rate there is what was achieved and not what kernels reach. Layers are timed on a CPU only: on a GPU their
    ranges show the host's launching.
    """
    cell = summary.cell
    timed = [t.spans_in("host", "layer") for t in timelines if t.label == cell.label and not t.spans_in("gpu")]
    steps = sum(len({span.step for span in spans}) for spans in timed)
    spent_s = summed(((s.phase, s.name), s.duration_s) for spans in timed for s in spans if s.phase is not None)
    layer_s = {part: seconds / steps for part, seconds in spent_s.items()}
    known_layers = layer_parts(cell) if model_of(cell) else ()
    layers = tuple(replace(part, time_s=layer_s.get((part.phase, part.name))) for part in known_layers)
    measured = [record.measurement for record in records if record.measurement]
    costs = phase_costs(measured)
    times_s = {cost.name: cost.host_s if cost.device_s is None else cost.device_s for cost in costs}
    times_s |= {WHOLE: step_s(measured)} if measured else {}
    known = phase_parts(cell) if model_of(cell) else declared_parts(measured[0])
    parts = (part for part in known if part.name in times_s)
    phases = tuple(replace(part, time_s=times_s[part.name]) for part in parts)
    profiled = [record for record in records if record.measurement and record.measurement.profiled_steps]
    return CellRoofline(summary, ceilings, phases, layers, explain_records(profiled) if profiled else None)


def base_and_fastest(rooflines: Sequence[CellRoofline]) -> list[tuple[CellRoofline, CellRoofline]]:
    """For each batch size of a setting, its base beside the fastest cell of each precision.

    The base is the config over which others are set; where it was not measured, the first of the fewest rungs.
    """
    name = base_config(one.summary for one in rooflines)
    groups = grouped(((one.summary.setting, one.summary.cell.batch_size), one) for one in rooflines)
    pairs: list[tuple[CellRoofline, CellRoofline]] = []
    for cells in groups.values():
        base = min(cells, key=lambda one: (one.summary.cell.config != name, len(one.summary.cell.rungs)))
        by_rate = sorted(cells, key=lambda one: one.summary.images_per_s.value if one.summary.images_per_s else 0.0)
        fastest = {one.precision: one for one in by_rate}
        pairs += [(base, fastest[precision]) for precision in dict.fromkeys(one.precision for one in cells)]
    return pairs


def worth_showing(parts: Iterable[WorkPart]) -> list[WorkPart]:
    """Parts that have a place in the picture: with FLOPs, bytes and a rate."""
    return [p for p in parts if p.flops and p.bytes and p.flops_s is not None and math.isfinite(p.flops_s)]


WHOLE = "whole step"
"""The name of the part that is all of a step, which the author of one declares."""


def declared_parts(measured: Measurement) -> tuple[WorkPart, ...]:
    """The phases whose work the step's author declares, and the whole step; none where nobody does."""
    phases = [WorkPart(w.phase, w.phase, round(w.flops), round(w.bytes)) for w in measured.declared or () if w.phase]
    flops, n_bytes = declared_work(measured)
    return (*phases, WorkPart(WHOLE, WHOLE, round(flops), round(n_bytes))) if flops or n_bytes else ()


@dataclass(frozen=True)
class PartCost:
    """A layer in one phase, a phase that no layers are known of, or on a GPU a kernel that no layer is known of: its
    `share` of a step, which ceiling is the lower one for it, and the share of that one that it reached; None where its
    work or the ceilings are not known, and where it ran faster than the ceiling of memory, by a cache."""

    part: WorkPart
    share: float
    bound: Literal["arithmetic", "memory"] | None = None
    of_ceiling: float | None = None


def costliest(timeline: Timeline, ceilings: Ceilings | None) -> tuple[PartCost, ...]:
    """All parts of a step, the longest first: by the GPU's time where it is one's. Raises SelectionError for a
    timeline without steps."""
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
    known: dict[tuple[str, str], WorkPart] = {}
    if record is not None:
        parts = declared_parts(record.measurement) if record.measurement else ()
        if model_of(record.cell):
            layers = layer_parts(record.cell)
            parts = (*layers, *phase_parts(record.cell, layers))
        known = {(part.phase, part.name): part for part in parts}
    costs = []
    for (phase_name, name), time_s in sorted(spent.items(), key=lambda item: -item[1]):
        part = replace(known.get((phase_name, name)) or WorkPart(name, phase_name, 0, 0), time_s=time_s)
        cost = PartCost(part, time_s / step.step_s)
        if record is not None and ceilings is not None and part.bytes:
            precision = "fp32" if name == "update" else precision_of(record.cell.rungs)
            least_s = part.least_s(ceilings, precision)
            bound: Literal["arithmetic", "memory"]
            bound = "memory" if part.intensity < ceilings.ridge(precision) else "arithmetic"
            cost = replace(cost, bound=bound, of_ceiling=least_s and least_s / time_s)
        costs.append(cost)
    return tuple(costs)
