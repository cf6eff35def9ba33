"""Steps to a loss by SGD and by K-FAC: what is kept of their runs, and what follows from them.

Each method takes the learning rate of its own list with the fewest steps on a seed that is not counted; then every seed
is trained by both from the same weights on the same batches. Knows no file and no view.
"""

import math
import statistics
from collections.abc import Sequence

import msgspec

from tcbench.core.numerics import TrainingSetting
from tcbench.core.record import Environment, KfacSettings

SCHEMA, SCHEMA_VERSION = "tcbench-steps", 1
LOSSES = (1.0, 0.5, 0.2)
"""Those whose steps are counted: of ten classes, whose first loss is about 2.3."""
SMOOTH = 5
"""A loss is reached where the mean of so many steps' losses is at it or below."""


class MethodRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a method. `losses`: the batches', up to where it ended; `train_time_s`: of all its steps; `reason`:
    why it did not get to the end."""

    method: str
    learning_rate: float
    seed: int
    losses: tuple[float, ...]
    train_time_s: float | None = None
    reason: str | None = None

    @property
    def smooth(self) -> list[float]:
        """Means of SMOOTH steps; the first is after step SMOOTH."""
        return [statistics.fmean(self.losses[i : i + SMOOTH]) for i in range(len(self.losses) - SMOOTH + 1)]

    @property
    def step_time_s(self) -> float | None:
        return None if self.train_time_s is None else self.train_time_s / len(self.losses)

    def steps_to(self, loss: float) -> int | None:
        """Steps until the loss is reached; None: never."""
        return next((step for step, mean in enumerate(self.smooth, SMOOTH) if mean <= loss), None)


class StepsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `tcbench numerics --second-order` keeps. `tuning`: of the seed that is not counted."""

    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    created_at: str
    setting: TrainingSetting
    kfac: KfacSettings
    tuning: tuple[MethodRun, ...]
    runs: tuple[MethodRun, ...]
    environment: Environment | None = None

    def of(self, method: str) -> tuple[MethodRun, ...]:
        return tuple(run for run in self.runs if run.method == method)


def best(tuning: Sequence[MethodRun]) -> float:
    """The learning rate that reaches the lowest loss in the fewest steps, then the next; of the same, with the lower
    last loss."""

    def order(run: MethodRun) -> tuple[float, ...]:
        steps = [run.steps_to(loss) or math.inf for loss in reversed(LOSSES)]
        return (*steps, run.smooth[-1] if run.reason is None and run.smooth else math.inf)

    return min(tuning, key=order).learning_rate
