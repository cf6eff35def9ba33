"""A step's change between two measurements, broken down: which phases, layers and kernels appeared, went, grew or
shrank, and by how much.

A level (phases, layers or kernels) is a list of parts and a rest. On both sides they add up to the step, so their
changes add up to the step's change. Pure functions from records or timelines to frozen results."""

import contextlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis import bottleneck, comparability, welch
from tcbench.analysis.bottleneck import Bottleneck
from tcbench.analysis.comparability import Difference
from tcbench.analysis.compare import THROUGHPUT, ClockName, Comparison, Trials
from tcbench.analysis.phases import phase_costs, step_s
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import group_by_cell
from tcbench.analysis.welch import LEAST_TRIALS
from tcbench.core.errors import NotComparableError
from tcbench.core.groups import summed
from tcbench.core.record import Cell, Environment, Measurement, Record
from tcbench.core.timeline import Span, Timeline

LevelName = Literal["time", "phases", "layers", "kernels"]
Fate = Literal["appeared", "went", "grew", "shrank", "same"]

SAME_TRAINING = ("model", "variant", "image_size", "n_classes", "batch_size", "ranks")
"""Fields of a cell that must be equal: otherwise the steps do different work, and their difference means nothing."""


@dataclass(frozen=True)
class StepPart:
    """A part of the step on both sides, in seconds per step; None on a side that does not have it.

    `change` is current - base with its 95% interval over trials, if both sides have two trials. `base_launches` and
    `current_launches` are a kernel's launches per step."""

    name: str
    phase: str | None
    base_s: float | None
    current_s: float | None
    change: Interval | None = None
    base_launches: float | None = None
    current_launches: float | None = None

    @property
    def change_s(self) -> float:
        """current - base in seconds; a side without the part counts as 0."""
        return (self.current_s or 0.0) - (self.base_s or 0.0)

    @property
    def ratio(self) -> float | None:
        """current over base; None unless both spend measurable time on the part."""
        both = self.base_s is not None and self.current_s is not None and min(self.base_s, self.current_s) > 1e-12
        return self.current_s / self.base_s if both and self.base_s and self.current_s else None

    @property
    def kind(self) -> Fate:
        """The fate of the part (`went`: only the base has it), even if the change may be noise."""
        if self.base_s is None or self.current_s is None:
            return "appeared" if self.base_s is None else "went"
        return "grew" if self.change_s > 0 else "shrank" if self.change_s < 0 else "same"

    @property
    def decided(self) -> bool:
        """Whether trials show that the part's time changed."""
        return self.change is not None and not self.change.holds(0.0)


@dataclass(frozen=True)
class Level:
    """The step broken down into parts, those that changed most first.

    `rest` is the step minus all parts. `clock` tells whose time is measured: the host's or the device's."""

    name: LevelName
    clock: ClockName
    parts: tuple[StepPart, ...]
    rest: StepPart

    @property
    def has_phases(self) -> bool:
        """Whether parts belong to phases, and are none themselves."""
        return self.name != "phases" and any(part.phase for part in self.parts)

    @property
    def has_rest(self) -> bool:
        """Whether the parts leave anything of the step but rounding errors."""
        return max(abs(self.rest.base_s or 0.0), abs(self.rest.current_s or 0.0)) > 1e-9


@dataclass(frozen=True)
class DiffSide:
    """One side of a diff: names of its cell and device, and its number of trials and steps. `bottleneck` is set for
    records with a profiled pass."""

    label: str
    device_name: str
    trials: int
    steps: int
    cell: Cell | None
    environment: Environment | None = None
    bottleneck: Bottleneck | None = None


@dataclass(frozen=True)
class Diff:
    """A step's change between two sides: the step and its levels, coarse to fine. `differences` lists what else the
    sides do not share, except for the config."""

    base: DiffSide
    current: DiffSide
    step: StepPart
    levels: tuple[Level, ...]
    differences: tuple[Difference, ...] = ()

    def share(self, part: StepPart) -> float | None:
        """Return the part's share of the step's change, or None if the step did not change at all.

        The share is 1 if the part explains the whole change, and negative if it changed the other way."""
        return part.change_s / self.step.change_s if self.step.change_s else None


# -- from records --------------------------------------------------------------------------------------------------


def diff_records(base: Sequence[Record], current: Sequence[Record]) -> Diff:
    """Return the diff of a cell's trials on each side, as `store.current` returns them.

    Phases are measured as in all tables (`phase_costs`): on the device, if they fill it. The rest is what the step
    takes beyond its phases: the time between them, and the difference between the timed and the profiled pass. Raises
    NotComparableError if the sides did not train the same, or one has no measurement."""
    sides = [(records, _environment(records)) for records in (base, current)]
    trials = [Trials(records, environment.machine if environment else None) for records, environment in sides]
    _check_same_training(base, current)
    step = _part_of_trials("step", None, _steps_s(base), _steps_s(current))
    clock: ClockName = "device" if all(side.fills_device for side in trials) else "host"
    before, after = (_phases_s(side, clock) for side in trials)
    parts = [_part_of_trials(name, name, before.get(name), after.get(name)) for name in {**before, **after}]
    levels = (make_level("phases", clock, step, parts, "outside of phases"),) if parts else ()
    differences = comparability.differences(trials[0].facts, trials[1].facts)
    return Diff(_side(base), _side(current), step, levels, differences)


def _environment(records: Sequence[Record]) -> Environment | None:
    """Return the first recorded environment."""
    return next((record.environment for record in records if record.environment), None)


def _steps_s(records: Sequence[Record]) -> list[float]:
    """Return the mean counted step of each successful trial. Raises NotComparableError if there is none."""
    measured = [m for m in _measured(records) if m.counted_times_s]
    if not measured:
        raise NotComparableError(f"{records[0].cell.label}: {records[0].status}: {records[0].reason}")
    return _rescaled(step_s(measured), [statistics.fmean(m.counted_times_s) for m in measured])


def _measured(records: Iterable[Record]) -> list[Measurement]:
    """Return the measurements of successful trials."""
    return [record.measurement for record in records if record.status == "ok" and record.measurement is not None]


def _phases_s(side: Trials, clock: ClockName) -> dict[str, list[float]]:
    """Return the times in seconds of each phase, one per trial, by the phase's name."""
    times_s, costs = side.phase_times(clock), phase_costs(_measured(side.records))
    shown_s = {cost.name: cost.device_s if clock == "device" else cost.host_s for cost in costs}
    return {name: _rescaled(shown_s[name] or 0.0, trial_times) for name, trial_times in times_s.items()}


def _rescaled(mean_s: float, times_s: Sequence[float]) -> list[float]:
    """Return the times scaled to have the mean `mean_s`, which is the figure that all tables show."""
    return [time_s * mean_s / (statistics.fmean(times_s) or math.inf) for time_s in times_s]


def _part_of_trials(
    name: str, phase: str | None, base_s: Sequence[float] | None, current_s: Sequence[float] | None
) -> StepPart:
    """Return a part from its times in seconds in the trials of each side (None: the side does not have the part). It
    has an interval only if both sides have at least two trials."""
    change = None
    if base_s and current_s and min(len(base_s), len(current_s)) >= LEAST_TRIALS:
        change = welch.difference(current_s, base_s)
    before, after = (statistics.fmean(times_s) if times_s else None for times_s in (base_s, current_s))
    return StepPart(name, phase, before, after, change)


def _side(records: Sequence[Record]) -> DiffSide:
    """Return one side of a diff of records."""
    cell, environment = records[0].cell, _environment(records)
    measured = [record.measurement for record in records if record.measurement is not None]
    profiled = [record for record in records if record.measurement and record.measurement.profiled_steps]
    explained = bottleneck.explain_records(profiled) if profiled else None
    steps = sum(len(measurement.counted_times_s) for measurement in measured)
    device = environment.device_name if environment else cell.device
    return DiffSide(cell.label, device, len(measured), steps, cell, environment, explained)


_MOST_CHANGED = 6


def changed_cells(comparison: Comparison, base: Iterable[Record], current: Iterable[Record]) -> tuple[Diff, ...]:
    """Return the diffs of the _MOST_CHANGED cells whose throughput changed most and certainly, the largest first."""
    before, after = group_by_cell(base), group_by_cell(current)
    certain = [c for c in comparison.cells if c.verdict in ("regression", "improved") and c.metric is THROUGHPUT]
    by_change = sorted(certain, key=lambda cell: -abs(math.log(cell.ratio.value)) if cell.ratio else 0.0)
    diffs = []
    for cell in by_change[:_MOST_CHANGED]:
        if cell.base is not None and cell.current is not None:
            old = before.get((cell.base.machine, cell.base.cell))
            new = after.get((cell.current.machine, cell.current.cell))
            if old and new:
                with contextlib.suppress(NotComparableError):
                    diffs.append(diff_records(old, new))
    return tuple(diffs)


# -- from timelines ------------------------------------------------------------------------------------------------


def diff_timelines(base: Timeline, current: Timeline) -> Diff:
    """Return the diff of two profiles, by means over their steps.

    On a device the step consists of busy time per phase and idle time per cause; otherwise of phases on the host. With
    one profile a side no part has an interval. Raises NotComparableError as `diff_records` does, and SelectionError for
    a timeline without steps."""
    records = [timeline.record for timeline in (base, current) if timeline.record is not None]
    if len(records) == 2:
        _check_same_training(records[:1], records[1:])
    devices = _device_kind(base.device), _device_kind(current.device)
    _check_equal([("batch size", base.batch_size, current.batch_size), ("device", *devices)])
    before, after = bottleneck.explain_timeline(base), bottleneck.explain_timeline(current)
    step = StepPart("step", None, before.step_s, after.step_s)
    if before.device is None or after.device is None:
        clock: ClockName = "host"
        phases: list[dict[PartKey, float]]
        phases = [{(p.name, p.name): p.host_s for p in side.phases} for side in (before, after)]
        rest = "between phases"
    else:
        clock = "device"
        phases = [
            {(p.name, p.name): p.device_s or 0.0 for p in side.phases}
            | summed(
                ((f"{f'idle in {gap.phase}' if gap.phase else 'idle'}: {_CAUSES[gap.cause]}", None), gap.duration_s / n)
                for gap in device.gaps
            )
            for side, device, n in ((before, before.device, before.steps), (after, after.device, after.steps))
        ]
        rest = "overlap of phases, and work outside of phases"
    levels = [make_level("phases", clock, step, merged_parts(*phases), rest)]
    layers = [_layers(timeline, clock) for timeline in (base, current)]
    if all(layers):
        levels.append(make_level("layers", clock, step, merged_parts(*layers), "outside of layers"))
    kernels = [_kernels(timeline) for timeline in (base, current)]
    if all(times_s for times_s, _ in kernels):
        (base_s, base_launches), (current_s, current_launches) = kernels
        merged = merged_parts(base_s, current_s, launches=(base_launches, current_launches))
        levels.append(make_level("kernels", "device", step, merged, "idle time of the device, minus overlap"))
    differences: tuple[Difference, ...] = ()
    if len(records) == 2:
        differences = comparability.differences(*(comparability.values([record]) for record in records))
    return Diff(_timeline_side(base), _timeline_side(current), step, tuple(levels), differences)


def _timeline_side(timeline: Timeline) -> DiffSide:
    """Return one side of a diff of timelines."""
    record = timeline.record
    cell, environment = (record.cell, record.environment) if record else (None, None)
    return DiffSide(timeline.label, timeline.device_name, 1, len(timeline.steps), cell, environment)


_CAUSES = {
    "launching": "the host launches late",
    "input": "waits for input",
    "synchronising": "the host waits for the device",
    "other": "between phases",
}
"""Causes of idle time, in words."""


def _device_kind(device: str) -> str:
    """Return the kind of a device: `cuda` for `cuda:0`."""
    return device.partition(":")[0]


PartKey = tuple[str, str | None]
"""The name and phase of a part."""

_PerPart = Mapping[PartKey, float]
"""Seconds or launches per step, by part."""


def _layers(timeline: Timeline, clock: ClockName) -> dict[PartKey, float]:
    """Return the seconds per step of each layer: on a device, of what the layer launched; on the host, of the layer."""
    on_device = clock == "device"
    spans = [s for s in timeline.spans_in("gpu") if s.layer] if on_device else timeline.spans_in("host", "layer")
    n = len(timeline.steps)
    return summed(((span.layer or span.name, span.phase), span.duration_s / n) for span in _in_steps(timeline, spans))


def _kernels(timeline: Timeline) -> tuple[dict[PartKey, float], dict[PartKey, float]]:
    """Return two mappings, of the seconds per step and of the launches per step of each kernel."""
    n, spans = len(timeline.steps), [*_in_steps(timeline, timeline.spans_in("gpu"))]
    times_s = summed(((span.name, span.phase), span.duration_s / n) for span in spans)
    return times_s, summed(((span.name, span.phase), 1 / n) for span in spans)


def _in_steps(timeline: Timeline, spans: Iterable[Span]) -> Iterable[Span]:
    """Return the spans that lie in a step of the timeline."""
    numbers = {step.step for step in timeline.steps}
    return (span for span in spans if span.step in numbers)


def merged_parts(
    base: _PerPart, current: _PerPart, *, launches: tuple[_PerPart, _PerPart] = ({}, {})
) -> list[StepPart]:
    """Return the parts that take time on at least one side. `base` and `current` map parts to seconds per step, and
    `launches` the launches per step of both sides."""
    return [
        StepPart(*key, base.get(key), current.get(key), None, *(counts.get(key) for counts in launches))
        for key in {**base, **current}
        if base.get(key) or current.get(key)
    ]


# -- both ----------------------------------------------------------------------------------------------------------


def make_level(name: LevelName, clock: ClockName, step: StepPart, parts: Iterable[StepPart], rest: str) -> Level:
    """Return a level with its parts, the largest change first, and the rest of the step under the name `rest`."""
    ordered = tuple(sorted(parts, key=lambda part: -abs(part.change_s)))
    base_s = math.fsum([step.base_s or 0.0, *(-(part.base_s or 0.0) for part in ordered)])
    current_s = math.fsum([step.current_s or 0.0, *(-(part.current_s or 0.0) for part in ordered)])
    return Level(name, clock, ordered, StepPart(rest, None, base_s, current_s))


def _check_same_training(base: Sequence[Record], current: Sequence[Record]) -> None:
    """Raise NotComparableError if the sides' cells differ in SAME_TRAINING or device, or only one is simulated."""
    before, after = base[0].cell, current[0].cell
    facts: list[tuple[str, object, object]] = [
        (name.replace("_", " "), getattr(before, name), getattr(after, name)) for name in SAME_TRAINING
    ]
    facts.append(("device", _device_kind(before.device), _device_kind(after.device)))
    environments = map(_environment, (base, current))
    simulated = ["" if e is None else "simulated" if e.simulated else "measured" for e in environments]
    if all(simulated):
        facts.append(("the device was", simulated[0], simulated[1]))
    _check_equal(facts)


def _check_equal(facts: Iterable[tuple[str, object, object]]) -> None:
    """Raise NotComparableError that lists the facts which differ. `facts` are (name, base's value, current's value)."""
    differing = [f"{name} {before} against {after}" for name, before, after in facts if before != after]
    if differing:
        raise NotComparableError(f"not the same training, so the change cannot be broken down: {', '.join(differing)}")
