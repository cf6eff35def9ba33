"""Chainer 7.8.1 on today's Python: the stand-ins its import needs, in one place.

Owns the import of Chainer. Every module of this backend takes it from here::

    from tcbench.engine.backends.chainer.compat import chainer

Three things that Chainer imports are gone: `pkg_resources` (setuptools 82), `numpy.distutils.system_info`
(Python 3.12) and `np.sctypes` (NumPy 2). They are set while Chainer is imported and taken away again, so that no
other package mistakes a stand-in for the real thing. SciPy, of which a step takes nothing and whose import is half of
Chainer's, is kept out meanwhile: the datasets, distributions and functions that want it say that it is not there."""

import contextlib
import importlib.metadata
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

_ABSENT = object()


def _pkg_resources() -> types.ModuleType:
    """The part of pkg_resources that chainer._environment_check asks for, answered by importlib.metadata."""
    module = types.ModuleType("pkg_resources")

    errors = ("DistributionNotFound", "VersionConflict", "ResolutionError")
    made = {name: type(name, (Exception,), {}) for name in errors}

    def require(requirement: str) -> None:
        """Chainer asks whether one of several CuPy or iDeep wheels is installed, by name and version range. The name is
        enough here: pyproject.toml holds the versions."""
        name = requirement.split("<")[0].split(">")[0].split("=")[0].split("!")[0].split("~")[0].strip()
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise made["DistributionNotFound"](name) from None

    vars(module).update(require=require, **made)
    return module


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    # Chainer asks its get_info for a BLAS only to warn when there is none.
    package, module = types.ModuleType("numpy.distutils"), types.ModuleType("numpy.distutils.system_info")
    vars(module)["get_info"] = lambda name: {"libraries": [name]}
    vars(package)["system_info"] = module
    stand_ins: list[tuple[dict[str, Any], str, types.ModuleType | None]] = [
        (sys.modules, "pkg_resources", _pkg_resources()),
        (sys.modules, "numpy.distutils", package),
        (sys.modules, "numpy.distutils.system_info", module),
        (vars(np), "distutils", package),
    ]
    # Of which CuPy's own import takes parts.
    if "scipy" not in sys.modules and importlib.util.find_spec("cupy") is None:
        stand_ins.append((sys.modules, "scipy", None))
    before = [place.get(name, _ABSENT) for place, name, _ in stand_ins]
    for place, name, stand_in in stand_ins:
        place[name] = stand_in
    try:
        yield
    finally:
        for (place, name, _), old in zip(stand_ins, before, strict=True):
            if old is _ABSENT:
                place.pop(name, None)
            else:
                place[name] = old


def _import_chainer() -> types.ModuleType:
    if "sctypes" not in vars(np):
        # functions.array.as_strided reads it at import and at run time, so this one stays.
        vars(np)["sctypes"] = {
            "int": [np.int8, np.int16, np.int32, np.int64],
            "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
            "float": [np.float16, np.float32, np.float64],
            "complex": [np.complex64, np.complex128],
            "others": [bool, object, bytes, str, np.void],
        }
    with _stand_ins(), warnings.catch_warnings():
        # "cuDNN is not enabled": CuPy 14 has no cupy.cudnn; our ops call cuDNN themselves.
        warnings.simplefilter("ignore")
        import chainer
    return chainer


chainer: Any = _import_chainer()
"""The package. Untyped, so that its classes may be subclassed without a word to the type checker."""
