"""Chainer's rungs: every module here is one rung, named RUNG in it. They import frameworks inside their stages only."""

from __future__ import annotations

import importlib
import pkgutil

from tcbench.engine.rung import Rung, RungSet


def _all() -> list[Rung]:
    return [importlib.import_module(f"{__name__}.{module.name}").RUNG for module in pkgutil.iter_modules(__path__)]


RUNGS = RungSet.of("chainer", _all())
