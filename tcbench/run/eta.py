"""Estimates how long trials will take, from what is known of a run so far. Pure functions.

- A cell that was measured costs the median of its trials. An earlier run on the machine counts as measured.
- Another cell costs its start-up, warm-up steps, profiled steps (on a device) and timed pass. The step time is the
  prediction of the step-time model, else the network's arithmetic divided by the rate of an ordinary processor or GPU.
  The sum is scaled by the median ratio of measured cells to their own sums.

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
_MORE_TO_SETTLE = 2
"""Assumed warm-up steps beyond the minimum. One of them accounts for the longer first step."""
_LAST_TRIALS = 5
"""The number of trials from which the pace is estimated."""
_SCATTER = 1.3
"""Trials differ from their estimates by up to this factor even if the machine's other work stays the same."""


@dataclass(frozen=True)
class CellTimes:
    """The times of a cell's trials.

    - `durations_s`: the duration of each finished trial without tuning, divided by the pace (`TimeLeft.pace`) at which
      it ran.
    - `tuning_s`: the longest time that a trial took to tune plans. Later trials take the plans from the cache.
    - `measured`: whether the last trial gave step times."""

    durations_s: tuple[float, ...] = ()
    tuning_s: float = 0.0
    measured: bool = False

    def with_record(self, record: Record, pace: float) -> CellTimes:
        """Return the times after one more trial, which ran at this pace (`TimeLeft.pace`). Tuning happens in the first
        warm-up step: its time is the excess over a mean step."""
        tuning_s, measured = 0.0, record.measurement
        if measured and any(plan.budget_s is not None and not plan.from_cache for plan in measured.plans):
            tuning_s = max(0.0, sum(measured.warmup_times_s[:1]) - statistics.fmean(measured.step_times_s))
        durations_s = (*self.durations_s, max(0.0, record.duration_s - tuning_s) / pace)
        return CellTimes(durations_s, max(tuning_s, self.tuning_s), measured is not None)


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
    - `foreseen`: predicted seconds per step, for cells that the step-time model knows."""

    remaining: tuple[Cell, ...] = ()
    seen: Mapping[Cell, CellTimes] = field(default_factory=dict)
    running: tuple[Cell, float] | None = None
    tuning: tuple[Cell, float] | None = None
    ratios: tuple[float, ...] = ()
    slowdown: float = 1.0
    foreseen: Mapping[Cell, float] = field(default_factory=dict)

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
        cell's finished trials, else `_sum_s` with the running trial's step time, else `_sum_s` scaled by the ratio at
        measured cells."""
        if durations_s := self.seen.get(cell, CellTimes()).durations_s:
            return statistics.median(durations_s)
        if self.running and self.running[0] == cell:
            return self._sum_s(cell, {cell: self.running[1] / self.slowdown})
        foreseen = self.foreseen if cell in self.foreseen else {}
        cells = [other for other, seen in self.seen.items() if seen.measured and (not foreseen or other in foreseen)]
        ratios = [statistics.median(self.seen[other].durations_s) / self._sum_s(other, foreseen) for other in cells]
        return self._sum_s(cell, foreseen) * (statistics.median(ratios) if ratios else 1.0)

    def _sum_s(self, cell: Cell, foreseen: Mapping[Cell, float]) -> float:
        """Return the expected seconds of a trial as the sum of its start-up, warm-up, profiled and timed steps. The
        step time is taken from `foreseen`, or else from the amount of arithmetic."""
        kind, settings = kind_of(cell.device), cell.measure
        step_s = foreseen.get(cell, _image_s(cell) * cell.batch_size) * self.slowdown
        profiled = 0 if kind.is_host else settings.profiled_steps
        # A quiet cell has the shortest timed pass, which ends with a complete block, and a noisy one the longest.
        shortest_s = math.ceil(settings.min_timed_steps / (settings.block_steps - 1)) * settings.block_steps * step_s
        longest_s = max(shortest_s, settings.max_time_s + settings.block_steps * step_s / 2)
        steps_s = (settings.min_warmup_steps + _MORE_TO_SETTLE + profiled) * step_s
        return kind.assumed_startup_s * self.slowdown + steps_s + (shortest_s + longest_s) / 2

    def _tuning_s(self, cell: Cell) -> float:
        """Return the expected seconds of tuning in the next trial of a cell: the known time of the running trial, 0 for
        a cell with finished trials, whose plans are cached, and else the median over the other cells."""
        if self.tuning and self.tuning[0] == cell:
            return self.tuning[1]
        if not self.seen or self.seen.get(cell, CellTimes()).durations_s:
            return 0.0
        return statistics.median(seen.tuning_s for seen in self.seen.values())

    def is_guess(self, cells: Iterable[Cell]) -> bool:
        """Return whether nothing is known about the step time of one of these cells: it is the user's own step, without
        any measured trial or prediction."""
        return not self.seen and not self.foreseen and any(model_of(cell) is None for cell in cells)

    def remaining_s(self, spent_on_first_s: float = 0.0) -> float:
        """Return the expected seconds until the run ends. The running trial has already taken `spent_on_first_s`."""
        if not self.remaining:
            return 0.0
        costs_s = {cell: self.trial_s(cell) for cell in dict.fromkeys(self.remaining)}
        first, *rest = (costs_s[cell] for cell in self.remaining)
        return max(1.0, first - spent_on_first_s) + sum(rest)


def estimate(
    cells: Sequence[Cell],
    before: Iterable[Record] = (),
    slowdown: float = 1.0,
    foreseen: Mapping[Cell, float] | None = None,
    earlier: Iterable[Record] = (),
) -> TimeLeft:
    """Return the estimate of the time left before the first of these cells is measured.

    - `before`: trials of an earlier part of the run.
    - `slowdown`, `foreseen`: as in `TimeLeft`.
    - `earlier`: trials of another run on the machine. All trials of a cell count as one, so that this run's trials soon
      outweigh them."""
    nothing_seen = TimeLeft(slowdown=slowdown, foreseen=foreseen or {})
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
    if model is None:
        return _ASSUMED_ITEM_S
    # Forward and backward: three products of each size, two operations per multiply-accumulate.
    macs = model.macs(cell.variant, cell.image_size, cell.n_classes)
    return 3 * 2 * macs / kind_of(cell.device).assumed_flops_s
