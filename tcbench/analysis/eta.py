"""The time that a run still takes: a pure estimate from what has been seen of it so far.

A trial costs its start-up, then steps of (batch size x seconds per image). Seconds per image are taken from the same
config when one of its trials has been seen, else from the configs seen, else from the model's arithmetic at a rate
that an ordinary processor or GPU reaches.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tcbench.accelerators.device import kind_of
from tcbench.core.record import Cell, Record
from tcbench.models import MODELS

_STARTUP_S = 4.0
_ASSUMED_ITEM_S = 0.01
"""Of a model that only the user knows."""
_WARMUP_STEPS = 4


@dataclass(frozen=True)
class Seen:
    """Seconds per image of a config, from a finished trial or the steps of a running one."""

    config: str
    image_s: float


@dataclass(frozen=True)
class Estimate:
    """The cells still to run, and the times seen. Immutable: `finished` and `stepped` return the next estimate."""

    remaining: tuple[Cell, ...]
    seen: tuple[Seen, ...] = ()
    startups_s: tuple[float, ...] = ()

    def finished(self, record: Record) -> Estimate:
        """The first remaining cell has ended."""
        remaining = self.remaining[1:]
        measured = record.measurement
        if measured is None:
            return replace(self, remaining=remaining)
        steps_s = sum(measured.warmup_times_s) + sum(measured.step_times_s)
        steps_s += sum(sum(phase.host_s) for phase in measured.phases)
        image_s = statistics.fmean(measured.step_times_s) / record.cell.batch_size
        return Estimate(
            remaining=remaining,
            seen=(*self.seen, Seen(record.cell.config, image_s)),
            startups_s=(*self.startups_s, max(0.0, record.duration_s - steps_s)),
        )

    def stepped(self, cell: Cell, step_time_s: float) -> Estimate:
        """The running cell, the first of the remaining ones, shows its step time."""
        return replace(self, seen=(*self.seen, Seen(cell.config, step_time_s / cell.batch_size)))

    def image_s(self, cell: Cell) -> float:
        """Seconds per image expected of a cell."""
        own = [seen.image_s for seen in self.seen if seen.config == cell.config]
        if own:
            return own[-1]
        family = [seen.image_s for seen in self.seen if seen.config.split("+")[0] == cell.config.split("+")[0]]
        if family:
            return family[-1]
        if self.seen:
            return self.seen[-1].image_s
        if cell.model not in MODELS:
            return _ASSUMED_ITEM_S
        macs = MODELS[cell.model].macs(cell.variant, cell.image_size, cell.n_classes)
        # Forward and backward: three products of each size, two operations per multiply-accumulate.
        return 3 * 2 * macs / kind_of(cell.device).assumed_flops_s

    def trial_s(self, cell: Cell) -> float:
        """Seconds expected of one whole trial."""
        step_s = self.image_s(cell) * cell.batch_size
        settings = cell.measure
        block = settings.block_steps
        fewest = math.ceil(settings.min_timed_steps / (block - 1)) * block
        # A noisy cell spends its budget, a quiet one stops at the fewest steps: half way is the fair guess.
        timed_s = max(fewest * step_s, (fewest * step_s + settings.max_time_s) / 2)
        startup_s = statistics.median(self.startups_s) if self.startups_s else _STARTUP_S
        return startup_s + (_WARMUP_STEPS + settings.profiled_steps) * step_s + timed_s

    def remaining_s(self, spent_on_first_s: float = 0.0) -> float:
        """Seconds until the run ends, `spent_on_first_s` of the running trial being over."""
        if not self.remaining:
            return 0.0
        first, *others = (self.trial_s(cell) for cell in self.remaining)
        return max(1.0, first - spent_on_first_s) + sum(others)


def estimate(cells: Sequence[Cell]) -> Estimate:
    """Before the first trial."""
    return Estimate(tuple(cells))
