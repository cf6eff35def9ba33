"""A benchmark and profiler for neural network training.

Importing it imports the standard library alone, so that a training script can. Public modules are imported at their
first use."""

import importlib
from types import ModuleType

__version__ = "0.1.0"

_PUBLIC_MODULES = ("step",)


def __getattr__(name: str) -> ModuleType:
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
