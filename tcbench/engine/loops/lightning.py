"""Marks the steps of `Trainer.fit` of Lightning, in the package `lightning` or `pytorch_lightning`."""

import importlib
import sys
from typing import Any

from tcbench.marks import StepMarker

_LOADED = [name for name in ("lightning.pytorch", "pytorch_lightning") if name in sys.modules]
_Callback: Any = importlib.import_module((_LOADED or ["lightning.pytorch"])[0]).Callback


class LightningSteps(_Callback):
    """A callback that marks the trainer's steps for `tcbench run`, and does nothing else. The parameters are those of
    `tcbench.steps`. With accumulated gradients, a step is an optimizer step. It stops the trainer by `should_stop`.

    A batch is dropped if a checkpoint or a validation precedes it in an epoch. Checkpoints of weights only count, since
    Lightning calls no hook for them."""

    def __init__(self, items: Any = None, unit: str = "samples", name: str = "train") -> None:
        self._marker = StepMarker(name, items, unit)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._marker.batches_per_step, self._marker.loader = trainer.accumulate_grad_batches, trainer.train_dataloader

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._marker.pause()  # drops what began after the last batch of an epoch
        self._marker.next_batch()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._marker.arrived(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        # No hook comes between this one and the request for the next batch, except those that pause.
        if self._marker.next_batch() and not self._marker.goes_on:
            trainer.should_stop = True

    def on_validation_start(self, *args: Any) -> None:
        self._marker.pause()

    on_save_checkpoint = on_validation_start
