"""A benchmark and profiler for neural network training.

Importing it imports the standard library alone, so that a training script can. Public modules are imported at their
first use."""

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tcbench.marks import StepMarker as StepMarker
    from tcbench.marks import phase as phase
    from tcbench.marks import steps as steps

__version__ = "0.1.0"

_PUBLIC_MODULES = ("marks", "step")

_PUBLIC_NAMES = {
    "steps": "marks",
    "phase": "marks",
    "StepMarker": "marks",
    "LightningSteps": "engine.loops.lightning",
    "TransformersSteps": "engine.loops.transformers",
    "KerasSteps": "engine.loops.keras",
    "chainer": "engine.backends.chainer.compat",
}
"""The public functions and classes, with the modules that define them. `chainer` is Chainer itself, imported so that it
works with today's NumPy."""


def __getattr__(name: str) -> object:
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _PUBLIC_NAMES:  # kept, because a loop may use it in every step
        return globals().setdefault(name, getattr(importlib.import_module(f"{__name__}.{_PUBLIC_NAMES[name]}"), name))
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
