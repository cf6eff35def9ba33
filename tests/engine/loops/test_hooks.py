"""The hooks, called in the order in which each framework's loop calls them. Stand-ins take the frameworks' places."""

import runpy
import sys
from types import SimpleNamespace

import pytest


class Marker:
    """Lists what happens in each step. Three steps are measured."""

    def __init__(self):
        self.steps, self.running, self.items, self.goes_on, self.needs_batch = [], None, None, False, False

    def next_batch(self):
        if self.running is not None:
            self.happens("|")
            if self.running.count("|") == self.batches_per_step:
                self.steps.append(" ".join(self.running[:-1]))
                self.running = []
        self.running = self.running or []
        return len(self.steps) >= 3

    def arrived(self, batch=None):
        self.happens("arrived" if batch is None else f"arrived:{batch}")

    def pause(self):
        self.running = None

    def happens(self, work):
        if self.running is not None:
            self.running.append(work)


@pytest.fixture
def make(monkeypatch):
    """Return a hook of a framework and its marker."""

    def make(module, package, name):
        base = type("Base", (), {})
        framework = SimpleNamespace(Callback=base, TrainerCallback=base, callbacks=SimpleNamespace(Callback=base))
        monkeypatch.setitem(sys.modules, package, framework)
        hook = runpy.run_module(f"tcbench.engine.loops.{module}")[name]()
        hook._marker = Marker()
        return hook, hook._marker

    return make


@pytest.mark.parametrize(("package", "accumulated"), [("lightning.pytorch", 1), ("pytorch_lightning", 2)])
def test_lightning_steps_contain_neither_validation_nor_checkpoints(make, accumulated, package):
    hook, marker = make("lightning", package, "LightningSteps")
    trainer = SimpleNamespace(should_stop=False, accumulate_grad_batches=accumulated, train_dataloader="loader")
    hook.on_validation_start(trainer, None)  # the sanity check
    hook.on_train_start(trainer, None)
    for _ in range(2):
        hook.on_train_epoch_start(trainer, None)
        for place in range(10):
            marker.happens("input")
            hook.on_train_batch_start(trainer, None, "batch", place)
            marker.happens("train")
            hook.on_train_batch_end(trainer, None, None, "batch", place)
            if place == 3:
                hook.on_save_checkpoint(trainer, None, {})
                marker.happens("save")
            if place == 5:
                hook.on_validation_start(trainer, None)
                marker.happens("validate")
        marker.happens("end of epoch")
    assert set(marker.steps) == {" | ".join(["input arrived:batch train"] * accumulated)}
    assert trainer.should_stop and marker.loader == "loader"


@pytest.mark.parametrize("accumulated", [1, 2])
def test_transformers_steps_contain_neither_evaluation_nor_checkpoints(make, accumulated):
    hook, marker = make("transformers", "transformers", "TransformersSteps")
    args = SimpleNamespace(gradient_accumulation_steps=accumulated, train_batch_size=4)
    control, hooks, marker.needs_batch = SimpleNamespace(should_training_stop=False), [], True

    def register(forward_hook, with_kwargs):
        hooks.append(forward_hook)
        return SimpleNamespace(remove=hooks.clear)

    hook.on_train_begin(args, None, control, train_dataloader="loader")
    for _ in range(2):
        hook.on_epoch_begin(args, None, control)
        for step in range(4):
            marker.happens("input")
            hook.on_step_begin(args, None, control, model=SimpleNamespace(register_forward_pre_hook=register))
            marker.needs_batch = False
            for batch in range(accumulated):
                for forward_hook in tuple(hooks):
                    forward_hook(None, (), "batch")
                marker.happens("train")
                (hook.on_substep_end if batch < accumulated - 1 else hook.on_step_end)(args, None, control)
            if step == 1:
                marker.happens("evaluate")
                hook.on_evaluate(args, None, control)
            if step == 2:
                marker.happens("save")
                hook.on_save(args, None, control)
        marker.happens("evaluate")
    rest = " train" + " | arrived train" * (accumulated - 1)
    assert (marker.steps[0], set(marker.steps[1:])) == ("input arrived:batch" + rest, {"input arrived" + rest})
    assert (control.should_training_stop, marker.items, marker.loader) == (True, 4, "loader")


@pytest.mark.parametrize(("accumulated", "executed"), [(None, 1), (2, 1), (1, 2), (4, 2)])
def test_keras_steps_contain_whole_updates_and_no_validation(make, accumulated, executed):
    hook, marker = make("keras", "keras", "KerasSteps")
    optimizer = SimpleNamespace(gradient_accumulation_steps=accumulated)
    hook.model = SimpleNamespace(stop_training=False, optimizer=optimizer, steps_per_execution=executed)
    hook.on_train_begin()
    for _ in range(2):
        hook.on_epoch_begin(0)
        for place in range(0, 8, executed):
            hook.on_train_batch_begin(place)
            marker.happens("train")
            hook.on_train_batch_end(place + executed - 1)
        marker.happens("validate")
    trained = [step.count("train") * executed for step in marker.steps]
    assert set(trained) == {max(accumulated or 1, executed)} and "validate" not in "".join(marker.steps)
    assert hook.model.stop_training
