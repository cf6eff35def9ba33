"""Chainer's rungs, one per module of this package. They import frameworks only inside their stages."""

import importlib
import pkgutil

from tcbench.engine.rung import RungSet


def load_rungs() -> RungSet:
    """Import every module of this package, and return their rungs."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return RungSet.defined_in("chainer", *modules)


RUNGS = load_rungs()
