"""Marks the steps of `Model.fit` of Keras 3."""

import importlib
import math
from typing import Any

from tcbench.marks import StepMarker

_Callback: Any = importlib.import_module("keras").callbacks.Callback


class KerasSteps(_Callback):
    """A callback that marks the steps of a fit for `tcbench run`, and does nothing else. The parameters are those of
    `tcbench.steps`, but `items` must be a number. It stops the fit by `model.stop_training`.

    A checkpoint that is saved within an epoch (`save_freq`) counts, since Keras calls no hook for it."""

    def __init__(self, items: float | None = None, unit: str = "samples", name: str = "train") -> None:
        super().__init__()
        self._marker = StepMarker(name, items, unit)

    def on_train_begin(self, logs: Any = None) -> None:
        accumulated = getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1
        self._marker.batches_per_step = math.lcm(accumulated, self.model.steps_per_execution)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._marker.pause()  # drops what began after the last batch, such as the validation
        self._marker.next_batch()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._marker.arrived()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for _ in range(self.model.steps_per_execution - 1):
            self._marker.next_batch()
            self._marker.arrived()
        if self._marker.next_batch() and not self._marker.goes_on:
            self.model.stop_training = True
