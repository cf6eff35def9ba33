"""Estimates how long trials will take, from what is known of a run so far. Pure functions.

A trial costs its start-up, warm-up steps, profiled steps (on a device), and its timed pass.

- A cell that was measured costs what its trials cost.
- For another cell, step time and start-up are averaged over the measured cells, weighted by similarity. How a step
  grows with the batch size is learned from configs measured at two batch sizes.
- If the step-time model predicts the cell's step, the prediction is scaled by its ratio to the measured steps.
- An earlier run on the machine counts as measured.
- Without measurements and predictions, the network's arithmetic is divided by the rate of an ordinary processor or GPU.

Other work on the machine may start or end during the run: if the last trials took longer or shorter than expected, the
next ones are expected to do so too."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tcbench.core.record import Cell, Record
from tcbench.engine.api import kind_of, model_of

_ASSUMED_ITEM_S = 0.01
"""Assumed seconds per image for the user's own model, whose arithmetic is unknown."""
_ASSUMED_PROGRAM_STEP_S = 0.1
"""Assumed seconds per step of the user's own program."""
_MORE_TO_SETTLE = 2
"""Assumed warm-up steps beyond the minimum. One of them accounts for the longer first step."""
_GROWTH = 0.8
"""A step's time grows with this power of the batch size, unless it is known from a config measured at two."""
_TO_TARGET = 0.5
"""Assumed position of the timed pass between its shortest and longest duration. A noisy cell takes the longest, a quiet
one the shortest."""
_LAST_TRIALS = 5
"""The number of trials from which the pace is estimated."""
_SCATTER = 1.3
"""Trials differ from their estimates by up to this factor even if the machine's other work stays the same."""


@dataclass(frozen=True)
class CellTimes:
    """The times of a cell's trials.

    - `step_s`: the mean step of the last trial; `startup_s`: the part of that trial that was no step.
    - `to_target`: where its timed pass lay between the shortest (0) and the longest (1) duration.
    - `durations_s`: the duration of each finished trial without tuning.
    - `tuning_s`: the longest time that a trial took to tune plans. Later trials take the plans from the cache.

    All but `to_target` and `tuning_s` are divided by the pace (`TimeLeft.pace`), so that they are as at the begin of
    the run."""

    step_s: float | None = None
    startup_s: float | None = None
    to_target: float | None = None
    durations_s: tuple[float, ...] = ()
    tuning_s: float = 0.0

    def with_record(self, record: Record, pace: float) -> CellTimes:
        """Return the times after one more trial at this pace. Tuning is the excess of the first warm-up step."""
        measured = record.measurement
        if measured is None:
            return replace(self, durations_s=(*self.durations_s, record.duration_s / pace))
        timed_s = sum(measured.step_times_s)
        profiled_s = 0.0 if measured.phases_are_timed else sum(sum(phase.host_s) for phase in measured.phases)
        steps_s = sum(measured.warmup_times_s) + timed_s + profiled_s
        step_s = statistics.fmean(measured.step_times_s)
        least_s, most_s = _timed_s(record.cell, step_s, measured.turns_max_time_s or None)
        to_target = min(1.0, max(0.0, (timed_s - least_s) / (most_s - least_s))) if most_s > least_s else None
        tuned = any(plan.budget_s is not None and not plan.from_cache for plan in measured.plans)
        tuning_s = max(0.0, sum(measured.warmup_times_s[:1]) - step_s) if tuned else 0.0
        durations_s = (*self.durations_s, max(0.0, record.duration_s - tuning_s) / pace)
        startup_s = max(0.0, record.duration_s - steps_s) / pace
        return CellTimes(step_s / pace, startup_s, to_target, durations_s, max(tuning_s, self.tuning_s))


@dataclass(frozen=True)
class TimeLeft:
    """The remaining trials and what is known about their durations. Immutable: `finished`, `tuned` and `stepped` return
    the next estimate.

    - `remaining`: the cell of each remaining trial, the running trial first.
    - `seen`: the times of the cells that have finished trials.
    - `running`: the cell of the running trial with its step time so far in seconds, divided by the pace.
    - `tuning`: the cell of the last trial that tuned plans, with the seconds that tuning took.
    - `ratios`: actual / expected duration of each of the last trials, at the pace of the run's begin.
    - `slowdown`: the factor by which other work on the machine slows a step, as assumed before any was measured.
    - `foreseen`: predicted seconds per step, for cells that the step-time model knows.
    - `turns_max_time_s`: the limit of a timed pass, if trials take turns and it is not the cells' own."""

    remaining: tuple[Cell, ...] = ()
    seen: Mapping[Cell, CellTimes] = field(default_factory=dict)
    running: tuple[Cell, float] | None = None
    tuning: tuple[Cell, float] | None = None
    ratios: tuple[float, ...] = ()
    slowdown: float = 1.0
    foreseen: Mapping[Cell, float] = field(default_factory=dict)
    turns_max_time_s: float | None = None

    def finished(self, record: Record) -> TimeLeft:
        """Return the estimate after the first of the remaining trials has ended. If it is ok, it also updates the pace,
        unless no trial was seen before."""
        times, now = self.seen.get(record.cell, CellTimes()), self
        if self.seen and record.status == "ok":
            (*_, took_s) = times.with_record(record, 1.0).durations_s
            now = replace(self, ratios=(*self.ratios, took_s / self._untuned_s(record.cell))[-_LAST_TRIALS:])
        seen = {**self.seen, record.cell: times.with_record(record, now.pace)}
        return replace(now, remaining=self.remaining[1:], seen=seen)

    def tuned(self, cell: Cell, tuning_s: float) -> TimeLeft:
        """Return the estimate after the running trial has tuned its plans."""
        return replace(self, tuning=(cell, tuning_s))

    def stepped(self, cell: Cell, step_time_s: float) -> TimeLeft:
        """Return the estimate with a new step time of the running trial."""
        return replace(self, running=(cell, step_time_s / self.pace))

    @property
    def pace(self) -> float:
        """The factor by which trials take longer now than at the begin of the run: the median of the last five `ratios`
        (missing ones count as 1), or 1 if that is within their usual scatter."""
        ratio = statistics.median((*self.ratios, *[1.0] * (_LAST_TRIALS - len(self.ratios))))
        return 1.0 if 1 / _SCATTER < ratio < _SCATTER else ratio

    def trial_s(self, cell: Cell) -> float:
        """Return the expected seconds of a trial."""
        return self._tuning_s(cell) + self.pace * self._untuned_s(cell)

    def _untuned_s(self, cell: Cell) -> float:
        """Return the expected seconds of a trial without tuning, at the pace of the run's begin: the median of the
        cell's finished trials, else the sum of start-up, warm-up, profiled and timed steps."""
        if durations_s := self.seen.get(cell, CellTimes()).durations_s:
            return statistics.median(durations_s)
        step_s, kind = self.step_s(cell), kind_of(cell.device)
        least_s, most_s = _timed_s(cell, step_s, self.turns_max_time_s)
        shares = [seen.to_target for seen in self.seen.values() if seen.to_target is not None]
        timed_s = least_s + (most_s - least_s) * (sum(shares) + _TO_TARGET) / (len(shares) + 1)
        startups = [(other, seen.startup_s) for other, seen in self.seen.items() if seen.startup_s is not None]
        startup_s = _weighted_mean(cell, startups) if startups else kind.assumed_startup_s * self.slowdown
        profiled = 0 if kind.is_host else cell.measure.profiled_steps
        return startup_s + (cell.measure.min_warmup_steps + _MORE_TO_SETTLE + profiled) * step_s + timed_s

    def _tuning_s(self, cell: Cell) -> float:
        """Return the expected seconds of tuning in the next trial of a cell: the known time of the running trial, 0 for
        a cell with finished trials, whose plans are cached, and else a mean over similar cells."""
        if self.tuning and self.tuning[0] == cell:
            return self.tuning[1]
        if not self.seen or self.seen.get(cell, CellTimes()).durations_s:
            return 0.0
        return _weighted_mean(cell, [(other, seen.tuning_s) for other, seen in self.seen.items()])

    def step_s(self, cell: Cell) -> float:
        """Return the expected seconds of a step, at the pace of the run's begin: the prediction, else an estimate from
        the network's arithmetic, scaled by its ratio to measured steps."""
        if self.running and self.running[0] == cell:
            return self.running[1]
        steps = [(other, math.log(seen.step_s)) for other, seen in self.seen.items() if seen.step_s]
        steps += [(self.running[0], math.log(self.running[1]))] if self.running else []
        model = self.foreseen
        if cell not in model:
            growth = _growth(steps) if steps else 1.0
            model = {other: _image_s(other) * other.batch_size**growth for other in (cell, *dict(steps))}
        log_ratios = [(other, log - math.log(model[other])) for other, log in steps if other in model]
        return model[cell] * (math.exp(_weighted_mean(cell, log_ratios)) if log_ratios else self.slowdown)

    def is_guess(self, cells: Iterable[Cell]) -> bool:
        """Return whether nothing is known about the step time of one of these cells: it is the user's own step, without
        any measured trial or prediction."""
        return not self.seen and not self.foreseen and any(model_of(cell) is None for cell in cells)

    def remaining_s(self, spent_s: float = 0.0, running: int = 1) -> float:
        """Return the expected seconds until the run ends. The first `running` trials, which run at the same time, have
        already taken `spent_s` together."""
        if not self.remaining:
            return 0.0
        costs_s = {cell: self.trial_s(cell) for cell in dict.fromkeys(self.remaining)}
        trials_s = [costs_s[cell] for cell in self.remaining]
        return max(1.0, sum(trials_s[:running]) - spent_s) + sum(trials_s[running:])


def estimate(
    cells: Sequence[Cell],
    before: Iterable[Record] = (),
    slowdown: float = 1.0,
    foreseen: Mapping[Cell, float] | None = None,
    earlier: Iterable[Record] = (),
    turns_max_time_s: float | None = None,
) -> TimeLeft:
    """Return the estimate of the time left before the first of these cells is measured.

    - `before`: trials of an earlier part of the run.
    - `slowdown`, `foreseen`, `turns_max_time_s`: as in `TimeLeft`.
    - `earlier`: trials of another run on the machine. All trials of a cell count as one, so that this run's trials soon
      outweigh them."""
    nothing_seen = TimeLeft(slowdown=slowdown, foreseen=foreseen or {}, turns_max_time_s=turns_max_time_s)
    earlier_times = functools.reduce(TimeLeft.finished, earlier, nothing_seen).seen.items()
    merged_times = {
        cell: replace(seen, durations_s=(statistics.median(seen.durations_s),)) for cell, seen in earlier_times
    }
    ran = (record for record in before if record.status != "skipped")
    now = functools.reduce(TimeLeft.finished, ran, replace(nothing_seen, seen=merged_times))
    return replace(now, remaining=tuple(cells))


@functools.lru_cache(1024)
def _image_s(cell: Cell) -> float:
    """Return the seconds that a cell's device is expected to take per image, from the model's arithmetic and the rate
    of an ordinary device of its kind."""
    model = model_of(cell)
    if model is None:  # what the batches of a program hold says little about its steps
        return _ASSUMED_PROGRAM_STEP_S / cell.batch_size if cell.command else _ASSUMED_ITEM_S
    # Forward and backward: three products of each size, two operations per multiply-accumulate.
    macs = model.macs(cell.variant, cell.image_size, cell.n_classes)
    return 3 * 2 * macs / kind_of(cell.device).assumed_flops_s


def _timed_s(cell: Cell, step_s: float, turns_max_time_s: float | None = None) -> tuple[float, float]:
    """Return the shortest and the longest duration of a timed pass of such steps, which ends with a complete block.
    `turns_max_time_s` replaces the cell's limit in turns."""
    settings = cell.measure
    block = settings.block_steps
    least_s = math.ceil(settings.min_timed_steps / (block - 1)) * block * step_s
    return least_s, max(least_s, (turns_max_time_s or settings.max_time_s) + block * step_s / 2)


def _weighted_mean(cell: Cell, values: Sequence[tuple[Cell, float]]) -> float:
    """Return the mean of figures of cells, weighted by their similarity to `cell`."""
    weights = [(0.1 + _distance(cell, other)) ** -3 for other, _ in values]
    return sum(weight * figure for weight, (_, figure) in zip(weights, values, strict=True)) / sum(weights)


def _distance(a: Cell, b: Cell) -> float:
    """Return the number of rungs in which two cells differ. A different backend, config or model counts as two rungs,
    twice the ranks as one, and twice the batch size as half a rung."""
    rungs = len(set(a.rungs) ^ set(b.rungs))
    settings = (a.backend != b.backend) + (a.config != b.config) * (not rungs) + (a.model != b.model)
    return rungs + 2 * settings + abs(math.log2(a.ranks / b.ranks)) + abs(_log_batch_ratio(a, b)) / math.log(4)


def _log_batch_ratio(a: Cell, b: Cell) -> float:
    """Return the logarithm of the ratio of two cells' batch sizes."""
    return math.log(a.batch_size / b.batch_size)


def _growth(steps: Sequence[tuple[Cell, float]]) -> float:
    """Return the power of the batch size with which a step's time grows, from configs measured at two batch sizes."""
    powers = [
        (log - other_log) / _log_batch_ratio(cell, other)
        for place, (cell, log) in enumerate(steps)
        for other, other_log in steps[:place]
        if (cell.model, cell.config, cell.ranks) == (other.model, other.config, other.ranks)
        and cell.batch_size != other.batch_size
    ]
    return min(1.2, max(0.0, statistics.median(powers or [_GROWTH])))
