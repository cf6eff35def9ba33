"""The import of Chainer 7.8.1 on current Python. Every module of this backend imports Chainer from here::

    from tcbench.engine.backends.chainer.compat import chainer

Three modules or attributes that Chainer imports no longer exist: `pkg_resources` (setuptools 82),
`numpy.distutils.system_info` (Python 3.12) and `np.sctypes` (NumPy 2). Stand-ins take their place while Chainer is
imported, and are then removed, so that no other package mistakes them for the originals. SciPy is hidden during the
import, because it takes half of the time and a training step does not use it. Chainer's datasets, distributions and
functions that use SciPy then report that it is missing."""

import contextlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

_ABSENT = object()


def _pkg_resources() -> types.ModuleType:
    """Return a stand-in for pkg_resources with the parts that chainer._environment_check uses."""
    module = types.ModuleType("pkg_resources")

    names = ("DistributionNotFound", "VersionConflict", "ResolutionError")
    errors = {name: type(name, (Exception,), {}) for name in names}

    def require(requirement: str) -> None:
        """Raise DistributionNotFound: pyproject.toml ensures the versions of the packages that Chainer asks for."""
        raise errors["DistributionNotFound"](requirement)

    vars(module).update(require=require, **errors)
    return module


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Install the stand-ins, and restore the previous state at the end."""
    # Chainer calls get_info only to warn when there is no BLAS.
    package, module = types.ModuleType("numpy.distutils"), types.ModuleType("numpy.distutils.system_info")
    vars(module)["get_info"] = lambda name: {"libraries": [name]}
    vars(package)["system_info"] = module
    stand_ins: list[tuple[dict[str, Any], str, types.ModuleType | None]] = [
        (sys.modules, "pkg_resources", _pkg_resources()),
        (sys.modules, "numpy.distutils", package),
        (sys.modules, "numpy.distutils.system_info", module),
        (vars(np), "distutils", package),
    ]
    # CuPy's import uses SciPy itself.
    if "scipy" not in sys.modules and importlib.util.find_spec("cupy") is None:
        stand_ins.append((sys.modules, "scipy", None))
    previous = [namespace.get(name, _ABSENT) for namespace, name, _ in stand_ins]
    for namespace, name, stand_in in stand_ins:
        namespace[name] = stand_in
    try:
        yield
    finally:
        for (namespace, name, _), old in zip(stand_ins, previous, strict=True):
            if old is _ABSENT:
                namespace.pop(name, None)
            else:
                namespace[name] = old


def _import_chainer() -> types.ModuleType:
    """Import Chainer with the stand-ins installed."""
    if "sctypes" not in vars(np):
        # functions.array.as_strided reads it at import and at run time, so it is not removed afterwards.
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
"""The package, typed as Any so that the type checker accepts subclasses of its classes."""
