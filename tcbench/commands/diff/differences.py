"""Two measurements of a step taken apart: which phases, layers and kernels came, went, grew or shrank, and how much of
the step's change each of them makes up.

A level (phases, layers, kernels) is a list of parts and a rest, which together are the step, on both sides: their
changes add up to the step's. Pure functions from records or timelines to frozen results.
"""

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

LevelName = Literal["phases", "layers", "kernels"]
Fate = Literal["appeared", "went", "grew", "shrank", "same"]

SAME_TRAINING = ("model", "variant", "image_size", "n_classes", "batch_size", "ranks")
"""Fields of a cell without which two steps do not do the same work, so that no change can be shared out."""


@dataclass(frozen=True)
class StepPart:
    """A part of the step on both sides, in seconds per step; None where that side does not have it. `change` is
    current - base with its 95% interval over trials, where both sides have two or more. `base_n`, `current_n`: launches
    per step, of a kernel."""

    name: str
    phase: str | None
    base_s: float | None
    current_s: float | None
    change: Interval | None = None
    base_n: float | None = None
    current_n: float | None = None

    @property
    def change_s(self) -> float:
        """current - base; a side that lacks it spends nothing on it."""
        return (self.current_s or 0.0) - (self.base_s or 0.0)

    @property
    def ratio(self) -> float | None:
        """current over base; None unless both spend time on it, more than a sum of floats is off by."""
        both = self.base_s is not None and self.current_s is not None and min(self.base_s, self.current_s) > 1e-12
        return self.current_s / self.base_s if both and self.base_s and self.current_s else None

    @property
    def kind(self) -> Fate:
        """Its fate, whether or not that is sure."""
        if self.base_s is None or self.current_s is None:
            return "appeared" if self.base_s is None else "went"
        return "grew" if self.change_s > 0 else "shrank" if self.change_s < 0 else "same"

    @property
    def decided(self) -> bool:
        """Whether trials tell that it changed at all."""
        return self.change is not None and not self.change.holds(0.0)


@dataclass(frozen=True)
class Level:
    """The step in parts, the one that changed most first. `rest` is the step less all of them. `clock`: whose time the
    parts are."""

    name: LevelName
    clock: ClockName
    parts: tuple[StepPart, ...]
    rest: StepPart


@dataclass(frozen=True)
class DiffSide:
    """One of the two: the cell's name, the device's, and the number of trials, or of a timeline's steps. `bottleneck`:
    of records with a profiled pass."""

    label: str
    device_name: str
    trials: int
    steps: int
    cell: Cell | None
    environment: Environment | None = None
    bottleneck: Bottleneck | None = None


@dataclass(frozen=True)
class Diff:
    """Two sides, the step of both, and its levels, coarse to fine. `differences`: everything else that the sides do not
    share, the config aside."""

    base: DiffSide
    current: DiffSide
    step: StepPart
    levels: tuple[Level, ...]
    differences: tuple[Difference, ...] = ()

    def share(self, part: StepPart) -> float | None:
        """The part's change over the step's: 1 where it explains all of it, below 0 where it makes up for some. None
        where the step took the same time to the last digit."""
        return part.change_s / self.step.change_s if self.step.change_s else None


# -- from records --------------------------------------------------------------------------------------------------


def of_records(base: Sequence[Record], current: Sequence[Record]) -> Diff:
    """The trials of one cell on each side, as `store.current` leaves them: the step and its phases as everywhere
    (`phase_costs`), which on a device that they fill are its own. What the step takes beyond its phases is the rest:
    time between them, and what the timed pass takes more or less than a profiled one. Raises NotComparableError where
    the two did not train the same, or one was not measured."""
    sides = [(records, _environment(records)) for records in (base, current)]
    both = [Trials(records, at.machine if at else None) for records, at in sides]
    _same_training(base, current)
    base_s, current_s = _steps_s(base), _steps_s(current)
    clock: ClockName = "device" if all(side.fills_device for side in both) else "host"
    before, after = (_phases_s(side, clock) for side in both)
    step = _of_trials("step", None, base_s, current_s)
    parts = [_of_trials(name, name, before.get(name), after.get(name)) for name in {**before, **after}]
    levels = (_level("phases", clock, step, parts, "outside of phases"),) if parts else ()
    differences = comparability.differences(both[0].facts, both[1].facts)
    return Diff(_side(base), _side(current), step, levels, differences)


def _environment(records: Sequence[Record]) -> Environment | None:
    return next((record.environment for record in records if record.environment), None)


def _steps_s(records: Sequence[Record]) -> list[float]:
    """The mean counted step of each trial that is ok. Raises NotComparableError without one."""
    measured = [m for m in _measured(records) if m.counted_times_s]
    if not measured:
        raise NotComparableError(f"{records[0].cell.label}: {records[0].status}: {records[0].reason}")
    return _about(step_s(measured), [statistics.fmean(m.counted_times_s) for m in measured])


def _measured(records: Iterable[Record]) -> list[Measurement]:
    return [record.measurement for record in records if record.status == "ok" and record.measurement is not None]


def _phases_s(side: Trials, clock: ClockName) -> dict[str, list[float]]:
    """The time of each phase in each trial."""
    times_s, costs = side.phase_times(clock), phase_costs(_measured(side.records))
    shown_s = {cost.name: cost.device_s if clock == "device" else cost.host_s for cost in costs}
    return {name: _about(shown_s[name] or 0.0, of_trials) for name, of_trials in times_s.items()}


def _about(mean_s: float, times_s: Sequence[float]) -> list[float]:
    """Trials that scatter as these do, about what all tables show."""
    return [time_s * mean_s / (statistics.fmean(times_s) or math.inf) for time_s in times_s]


def _of_trials(
    name: str, phase: str | None, base_s: Sequence[float] | None, current_s: Sequence[float] | None
) -> StepPart:
    change = None
    if base_s and current_s and min(len(base_s), len(current_s)) >= LEAST_TRIALS:
        change = welch.difference(current_s, base_s)
    before, after = (statistics.fmean(times) if times else None for times in (base_s, current_s))
    return StepPart(name, phase, before, after, change)


def _side(records: Sequence[Record]) -> DiffSide:
    cell, environment = records[0].cell, _environment(records)
    measured = [record.measurement for record in records if record.measurement is not None]
    profiled = [record for record in records if record.measurement and record.measurement.profiled_steps]
    explained = bottleneck.explain_records(profiled) if profiled else None
    steps = sum(len(measurement.counted_times_s) for measurement in measured)
    device = environment.device_name if environment else cell.device
    return DiffSide(cell.label, device, len(measured), steps, cell, environment, explained)


_MOST_CHANGED = 6


def changed(comparison: Comparison, base: Iterable[Record], current: Iterable[Record]) -> tuple[Diff, ...]:
    """The cells whose throughput surely changed, those that changed most, of the records that were compared."""
    before, after = group_by_cell(base), group_by_cell(current)
    certain = [c for c in comparison.cells if c.verdict in ("regression", "improved") and c.metric is THROUGHPUT]
    by_change = sorted(certain, key=lambda cell: -abs(math.log(cell.ratio.value)) if cell.ratio else 0.0)
    diffs = []
    for cell in by_change[:_MOST_CHANGED]:
        if cell.base is not None and cell.current is not None:
            ours = before.get((cell.base.machine, cell.base.cell))
            theirs = after.get((cell.current.machine, cell.current.cell))
            if ours and theirs:
                with contextlib.suppress(NotComparableError):
                    diffs.append(of_records(ours, theirs))
    return tuple(diffs)


# -- from timelines ------------------------------------------------------------------------------------------------


def of_timelines(base: Timeline, current: Timeline) -> Diff:
    """Two profiles: means over their steps. On a device the step is the time in which it worked, phase by phase, and
    that in which it idled, by cause; else the phases on the host. One profile a side says nothing of how profiles
    differ: no part has an interval. Raises NotComparableError as `of_records` does, and SelectionError for a timeline
    without steps."""
    records = [timeline.record for timeline in (base, current) if timeline.record is not None]
    if len(records) == 2:
        _same_training(records[:1], records[1:])
    _refuse(
        [("batch size", base.batch_size, current.batch_size), ("device", _noun(base.device), _noun(current.device))]
    )
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
        rest = "phases that overlap, and work of none"
    levels = [_level("phases", clock, step, _merged(*phases), rest)]
    layers = [_layers(timeline, clock) for timeline in (base, current)]
    if all(layers):
        levels.append(_level("layers", clock, step, _merged(*layers), "outside of layers"))
    kernels = [_kernels(timeline) for timeline in (base, current)]
    if all(spent for spent, _ in kernels):
        (spent, launches), (other, others) = kernels
        merged = _merged(spent, other, launches=(launches, others))
        levels.append(_level("kernels", "device", step, merged, "the device idle, less what overlaps"))
    differences: tuple[Difference, ...] = ()
    if len(records) == 2:
        differences = comparability.differences(*(comparability.values([record]) for record in records))
    return Diff(_taken(base), _taken(current), step, tuple(levels), differences)


def _taken(timeline: Timeline) -> DiffSide:
    record = timeline.record
    cell, environment = (record.cell, record.environment) if record else (None, None)
    return DiffSide(timeline.label, timeline.device_name, 1, len(timeline.steps), cell, environment)


_CAUSES = {
    "launching": "the host launches late",
    "input": "waits for input",
    "synchronising": "the host waits for it",
    "other": "between phases",
}


def _noun(device: str) -> str:
    return device.partition(":")[0]


PartKey = tuple[str, str | None]
"""Name and phase of a part."""

_Spent = Mapping[PartKey, float]


def _layers(timeline: Timeline, clock: ClockName) -> dict[PartKey, float]:
    """Seconds per step: of a device the time of what each layer launched; of a host its own."""
    on_device = clock == "device"
    spans = [s for s in timeline.spans_in("gpu") if s.layer] if on_device else timeline.spans_in("host", "layer")
    n = len(timeline.steps)
    return summed(((span.layer or span.name, span.phase), span.duration_s / n) for span in _in_steps(timeline, spans))


def _kernels(timeline: Timeline) -> tuple[dict[PartKey, float], dict[PartKey, float]]:
    n, spans = len(timeline.steps), [*_in_steps(timeline, timeline.spans_in("gpu"))]
    spent = summed(((span.name, span.phase), span.duration_s / n) for span in spans)
    return spent, summed(((span.name, span.phase), 1 / n) for span in spans)


def _in_steps(timeline: Timeline, spans: Iterable[Span]) -> Iterable[Span]:
    numbers = {step.step for step in timeline.steps}
    return (span for span in spans if span.step in numbers)


def _merged(base: _Spent, current: _Spent, *, launches: tuple[_Spent, _Spent] = ({}, {})) -> list[StepPart]:
    """Each key of either side once, but for what takes no time on both."""
    return [
        StepPart(*key, base.get(key), current.get(key), None, *(of.get(key) for of in launches))
        for key in {**base, **current}
        if base.get(key) or current.get(key)
    ]


# -- both ----------------------------------------------------------------------------------------------------------


def _level(name: LevelName, clock: ClockName, step: StepPart, parts: Iterable[StepPart], rest: str) -> Level:
    ordered = tuple(sorted(parts, key=lambda part: -abs(part.change_s)))
    both = ((step.base_s, [p.base_s for p in ordered]), (step.current_s, [p.current_s for p in ordered]))
    base_s, current_s = (math.fsum([whole or 0.0, *(-(part or 0.0) for part in parts)]) for whole, parts in both)
    return Level(name, clock, ordered, StepPart(rest, None, base_s, current_s))


def _same_training(base: Sequence[Record], current: Sequence[Record]) -> None:
    """Raises NotComparableError for two cells that do not train the same, in one line with everything that differs."""
    one, other = base[0].cell, current[0].cell
    facts: list[tuple[str, object, object]] = [
        (name.replace("_", " "), getattr(one, name), getattr(other, name)) for name in SAME_TRAINING
    ]
    facts.append(("device", _noun(one.device), _noun(other.device)))
    environments = map(_environment, (base, current))
    simulated = ["" if e is None else "simulated" if e.simulated else "measured" for e in environments]
    if all(simulated):
        facts.append(("the device was", simulated[0], simulated[1]))
    _refuse(facts)


def _refuse(facts: Iterable[tuple[str, object, object]]) -> None:
    differing = [f"{name} {one} against {other}" for name, one, other in facts if one != other]
    if differing:
        raise NotComparableError(f"not the same training, so no change to take apart: {', '.join(differing)}")
