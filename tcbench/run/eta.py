"""The time that trials take: a pure estimate from what has been seen of a run so far.

A trial costs its start-up, steps to warm up and on a device to be profiled, and its timed pass. A cell that was seen
costs what its trials cost. Of another one, the time of a step and the start-up are those of the configs seen, the more
alike the heavier: how a step grows with the batch size is learned from configs seen at two. Where the model of a step's
time has told what a cell's takes, that is in proportion to those seen. An earlier run on the machine counts as seen.
Before anything is seen or told, the network's arithmetic at a rate that an ordinary processor or GPU reaches stands in.
Other work on the machine slows a run down or no longer does: where the last trials took longer or shorter than was
expected of them, so will the next.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tcbench.core.record import Cell, Record
from tcbench.engine.api import kind_of, model_of

_ASSUMED_ITEM_S = 0.01
"""Of a model that only the user knows."""
_MORE_TO_SETTLE = 2
"""Steps of a warm-up beyond the fewest that it may have; of one step, which is cold, what it takes beyond another."""
_GROWTH = 0.8
"""A step's time grows with this power of the batch size, until a config was seen at two of them."""
_TO_TARGET = 0.5
"""A noisy cell spends its whole time on the timed pass, a quiet one stops at the fewest steps: half way is fair."""
_LAST_TRIALS = 5
_SCATTER = 1.3
"""By so much trials differ from what is expected of them on a machine whose other work stays the same."""


@dataclass(frozen=True)
class Seen:
    """A cell's trials. `step_s` is the mean step of the last one; `startup_s` what of it was no step; `to_target` how
    much of the time between the fewest timed steps and the most it took, from 0 to 1. `durations_s`: of those that have
    ended, without `tuning_s`, which the first of them took to tune plans that are kept. All but that are as they would
    have been while the run began: divided by the estimate's pace."""

    step_s: float | None = None
    startup_s: float | None = None
    to_target: float | None = None
    durations_s: tuple[float, ...] = ()
    tuning_s: float = 0.0

    def after(self, record: Record, pace: float) -> Seen:
        measured = record.measurement
        if measured is None:
            return replace(self, durations_s=(*self.durations_s, record.duration_s / pace))
        timed_s = sum(measured.step_times_s)
        profiled_s = 0.0 if measured.phases_are_timed else sum(sum(phase.host_s) for phase in measured.phases)
        steps_s = sum(measured.warmup_times_s) + timed_s + profiled_s
        step_s = statistics.fmean(measured.step_times_s)
        least_s, most_s = _timed_s(record.cell, step_s)
        to_target = min(1.0, max(0.0, (timed_s - least_s) / (most_s - least_s))) if most_s > least_s else None
        tuned = any(plan.budget_s is not None and not plan.from_cache for plan in measured.plans)
        tuning_s = max(0.0, sum(measured.warmup_times_s[:1]) - step_s) if tuned else 0.0
        durations_s = (*self.durations_s, max(0.0, record.duration_s - tuning_s) / pace)
        startup_s = max(0.0, record.duration_s - steps_s) / pace
        return Seen(step_s / pace, startup_s, to_target, durations_s, max(tuning_s, self.tuning_s))


@dataclass(frozen=True)
class TimeLeft:
    """The trials still to run, by their cells, and the cells seen. Immutable: `finished`, `tuned` and `stepped` return
    the next estimate. `running`: the first of the remaining cells, and its step time so far; `tuning`: the time that it
    takes to tune its plans. `ratios`: how many times as long as expected the last trials took, not counting `pace`.
    `slowdown`: how many times as long as alone a step takes beside the machine's other work, before one is seen.
    `foreseen`: seconds of a step by the model, of cells of which it has told them."""

    remaining: tuple[Cell, ...] = ()
    seen: Mapping[Cell, Seen] = field(default_factory=dict)
    running: tuple[Cell, float] | None = None
    tuning: tuple[Cell, float] | None = None
    ratios: tuple[float, ...] = ()
    slowdown: float = 1.0
    foreseen: Mapping[Cell, float] = field(default_factory=dict)

    def finished(self, record: Record) -> TimeLeft:
        """The first of the remaining trials has ended."""
        of_cell, now = self.seen.get(record.cell, Seen()), self
        if self.seen and record.status == "ok":
            (*_, took_s) = of_cell.after(record, 1.0).durations_s
            now = replace(self, ratios=(*self.ratios, took_s / self._untuned_s(record.cell))[-_LAST_TRIALS:])
        seen = {**self.seen, record.cell: of_cell.after(record, now.pace)}
        return replace(now, remaining=self.remaining[1:], seen=seen)

    def tuned(self, cell: Cell, tuning_s: float) -> TimeLeft:
        """The running trial takes so long to tune its plans."""
        return replace(self, tuning=(cell, tuning_s))

    def stepped(self, cell: Cell, step_time_s: float) -> TimeLeft:
        return replace(self, running=(cell, step_time_s / self.pace))

    @property
    def pace(self) -> float:
        """How many times as long as while the run began trials take by now: the median of the last, where it is beyond
        their scatter. One that was not expected rightly says nothing, most of five do."""
        ratio = statistics.median((*self.ratios, *[1.0] * (_LAST_TRIALS - len(self.ratios))))
        return 1.0 if 1 / _SCATTER < ratio < _SCATTER else ratio

    def trial_s(self, cell: Cell) -> float:
        return self._tuning_s(cell) + self.pace * self._untuned_s(cell)

    def _untuned_s(self, cell: Cell) -> float:
        """Seconds expected of a trial without tuning, at the pace while the run began."""
        if durations_s := self.seen.get(cell, Seen()).durations_s:
            return statistics.median(durations_s)
        step_s, kind = self.step_s(cell), kind_of(cell.device)
        least_s, most_s = _timed_s(cell, step_s)
        shares = [seen.to_target for seen in self.seen.values() if seen.to_target is not None]
        timed_s = least_s + (most_s - least_s) * (sum(shares) + _TO_TARGET) / (len(shares) + 1)
        startups = [(other, seen.startup_s) for other, seen in self.seen.items() if seen.startup_s is not None]
        startup_s = _alike(cell, startups) if startups else kind.assumed_startup_s * self.slowdown
        profiled = 0 if kind.is_host else cell.measure.profiled_steps
        return startup_s + (cell.measure.min_warmup_steps + _MORE_TO_SETTLE + profiled) * step_s + timed_s

    def _tuning_s(self, cell: Cell) -> float:
        """Seconds expected of tuning: what is known of the running trial, else nothing for a cell whose plans are
        kept."""
        if self.tuning and self.tuning[0] == cell:
            return self.tuning[1]
        if not self.seen or self.seen.get(cell, Seen()).durations_s:
            return 0.0
        return _alike(cell, [(other, seen.tuning_s) for other, seen in self.seen.items()])

    def step_s(self, cell: Cell) -> float:
        """Seconds expected of a step, at the pace while the run began: by the model where it has told the cell's, else
        by the network's arithmetic, in proportion to those seen."""
        if self.running and self.running[0] == cell:
            return self.running[1]
        steps = [(other, math.log(seen.step_s)) for other, seen in self.seen.items() if seen.step_s]
        steps += [(self.running[0], math.log(self.running[1]))] if self.running else []
        model = self.foreseen
        if cell not in model:
            growth = _growth(steps) if steps else 1.0
            model = {of: _image_s(of) * of.batch_size**growth for of in (cell, *dict(steps))}
        slower = [(other, log - math.log(model[other])) for other, log in steps if other in model]
        return model[cell] * (math.exp(_alike(cell, slower)) if slower else self.slowdown)

    def is_guess(self, cells: Iterable[Cell]) -> bool:
        """Whether nothing is known about the step time of one of these cells: the step is the user's own, and no trial
        has been seen and no step time predicted."""
        return not self.seen and not self.foreseen and any(model_of(cell) is None for cell in cells)

    def remaining_s(self, spent_on_first_s: float = 0.0) -> float:
        """Seconds until the run ends, `spent_on_first_s` of the running trial being over."""
        if not self.remaining:
            return 0.0
        costs_s = {cell: self.trial_s(cell) for cell in dict.fromkeys(self.remaining)}
        first, *others = (costs_s[cell] for cell in self.remaining)
        return max(1.0, first - spent_on_first_s) + sum(others)


def estimate(
    cells: Sequence[Cell],
    before: Iterable[Record] = (),
    slowdown: float = 1.0,
    foreseen: Mapping[Cell, float] | None = None,
    earlier: Iterable[Record] = (),
) -> TimeLeft:
    """Before the first trial of these cells; `before` are trials of an earlier part of the run, `earlier` those of
    another run on the machine: all of a cell's together count as one, which this run's soon outvote."""
    nothing_seen = TimeLeft(slowdown=slowdown, foreseen=foreseen or {})
    known = functools.reduce(TimeLeft.finished, earlier, nothing_seen).seen.items()
    once = {cell: replace(seen, durations_s=(statistics.median(seen.durations_s),)) for cell, seen in known}
    ran = (record for record in before if record.status != "skipped")
    now = functools.reduce(TimeLeft.finished, ran, replace(nothing_seen, seen=once))
    return replace(now, remaining=tuple(cells))


@functools.lru_cache(1024)
def _image_s(cell: Cell) -> float:
    """Seconds per image by the model's arithmetic."""
    model = model_of(cell)
    if model is None:
        return _ASSUMED_ITEM_S
    # Forward and backward: three products of each size, two operations per multiply-accumulate.
    macs = model.macs(cell.variant, cell.image_size, cell.n_classes)
    return 3 * 2 * macs / kind_of(cell.device).assumed_flops_s


def _timed_s(cell: Cell, step_s: float) -> tuple[float, float]:
    """The least and the most time of a timed pass of such steps: it ends with a block of them."""
    settings = cell.measure
    block = settings.block_steps
    least_s = math.ceil(settings.min_timed_steps / (block - 1)) * block * step_s
    return least_s, max(least_s, settings.max_time_s + block * step_s / 2)


def _alike(cell: Cell, values: Sequence[tuple[Cell, float]]) -> float:
    """The mean of values of cells, weighted by how like this one they are."""
    weights = [(0.1 + _distance(cell, other)) ** -3 for other, _ in values]
    return sum(weight * value for weight, (_, value) in zip(weights, values, strict=True)) / sum(weights)


def _distance(one: Cell, other: Cell) -> float:
    """The number of rungs and settings that tell two cells apart; a batch size twice as large counts half a rung."""
    rungs = len(set(one.rungs) ^ set(other.rungs))
    settings = (one.backend != other.backend) + (one.config != other.config) * (not rungs) + (one.model != other.model)
    return rungs + 2 * settings + abs(math.log2(one.ranks / other.ranks)) + abs(_times(one, other)) / math.log(4)


def _times(one: Cell, other: Cell) -> float:
    """The logarithm of how many times as large one's batch is."""
    return math.log(one.batch_size / other.batch_size)


def _growth(steps: Sequence[tuple[Cell, float]]) -> float:
    """The power of the batch size with which a step's time grows, of configs seen at two."""
    powers = [
        (log - other_log) / _times(cell, other)
        for place, (cell, log) in enumerate(steps)
        for other, other_log in steps[:place]
        if (cell.model, cell.config, cell.ranks) == (other.model, other.config, other.ranks)
        and cell.batch_size != other.batch_size
    ]
    return min(1.2, max(0.0, statistics.median(powers or [_GROWTH])))
