"""Marks the steps of `Trainer.train` of Hugging Face Transformers."""

import importlib
from typing import Any

from tcbench.marks import StepMarker

_Callback: Any = importlib.import_module("transformers").TrainerCallback


class TransformersSteps(_Callback):
    """A callback that marks the trainer's steps for `tcbench run`, and does nothing else. The parameters are those of
    `tcbench.steps`; the batch is what the model gets. It stops the trainer by `control.should_training_stop`."""

    def __init__(self, items: Any = None, unit: str = "samples", name: str = "train") -> None:
        self._marker = StepMarker(name, items, unit)

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        self._marker.batches_per_step, self._marker.loader = args.gradient_accumulation_steps, train_dataloader
        if self._marker.items is None:
            self._marker.items = args.train_batch_size

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        self._marker.pause()  # drops what began after the last step
        self._marker.next_batch()

    # The trainer evaluates and saves after `on_step_end`, and then calls these hooks.
    on_evaluate = on_save = on_epoch_begin

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not self._marker.needs_batch:
            self._marker.arrived()
            return

        def take_batch(_model: Any, _args: Any, batch: Any) -> None:
            handle.remove()
            self._marker.arrived(batch)

        handle = model.register_forward_pre_hook(take_batch, with_kwargs=True)

    def on_substep_end(self, *args: Any, **kwargs: Any) -> None:
        self._marker.next_batch()
        self._marker.arrived()  # the trainer fetches all batches of a step before the step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._marker.next_batch() and not self._marker.goes_on:
            control.should_training_stop = True
