"""Chainer's rungs: every module here is one rung. They import frameworks inside their stages only."""

import importlib
import pkgutil

from tcbench.engine.rung import RungSet


def _all() -> RungSet:
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return RungSet.defined_in("chainer", *modules)


RUNGS = _all()
