"""Steps to a loss by SGD and by K-FAC: the stored document, and what follows from it.

Each method uses the learning rate, from its own list, that needs the fewest steps on a seed that is not counted. Both
then train from the same weights on the same batches for every seed. Reads and draws nothing."""

import math
import statistics
from collections.abc import Sequence

import msgspec

from tcbench.core.numerics import TrainingSetting
from tcbench.core.record import Environment, KfacSettings

SCHEMA, SCHEMA_VERSION = "tcbench-steps", 1
LOSSES = (1.0, 0.5, 0.2)
"""Losses whose steps are counted. With ten classes the first loss is about 2.3."""
SMOOTH = 5
"""Number of steps in the running mean that has to reach a loss."""


class MethodRun(msgspec.Struct, frozen=True, kw_only=True):
    """One training run by SGD or K-FAC (`method`).

    `losses` has the loss of each step, up to the last one. `train_time_s` is the time of all steps. `reason` says why
    it did not finish."""

    method: str
    learning_rate: float
    seed: int
    losses: tuple[float, ...]
    train_time_s: float | None = None
    reason: str | None = None

    @property
    def smooth(self) -> list[float]:
        """Running means over SMOOTH steps; the first one ends at step SMOOTH."""
        return [statistics.fmean(self.losses[i : i + SMOOTH]) for i in range(len(self.losses) - SMOOTH + 1)]

    @property
    def step_time_s(self) -> float | None:
        """The mean time of a step in seconds, or None."""
        return None if self.train_time_s is None else self.train_time_s / len(self.losses)

    def steps_to(self, loss: float) -> int | None:
        """Return the number of steps until the running mean reaches a loss, or None if it never does."""
        return next((step for step, mean in enumerate(self.smooth, SMOOTH) if mean <= loss), None)


class StepsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `tcbench numerics --second-order` stores. `tuning` has the runs that chose the learning
    rates."""

    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    created_at: str
    setting: TrainingSetting
    kfac: KfacSettings
    tuning: tuple[MethodRun, ...]
    runs: tuple[MethodRun, ...]
    environment: Environment | None = None

    def runs_of(self, method: str) -> tuple[MethodRun, ...]:
        """Return the runs of a method."""
        return tuple(run for run in self.runs if run.method == method)


def best_learning_rate(tuning: Sequence[MethodRun]) -> float:
    """Return the learning rate that reaches the lowest loss in the fewest steps. Ties are broken by the steps to the
    next higher loss, and finally by the loss at the end."""

    def order(run: MethodRun) -> tuple[float, ...]:
        steps = [run.steps_to(loss) or math.inf for loss in reversed(LOSSES)]
        return (*steps, run.smooth[-1] if run.reason is None and run.smooth else math.inf)

    return min(tuning, key=order).learning_rate
