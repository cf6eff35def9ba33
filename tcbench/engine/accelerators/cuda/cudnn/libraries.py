"""Finds and loads cuDNN and the libraries that it needs, so that nobody has to set LD_LIBRARY_PATH.

The wheels for CUDA 12 put each library into a folder of its own (nvidia/cublas/lib, nvidia/cuda_nvrtc/lib); those for
CUDA 13 share nvidia/cu13/lib. cuDNN opens cuBLAS and NVRTC by their bare names, its frontend the CUDA runtime, and
NVRTC its built-in functions, which works once they are loaded."""

import contextlib
import ctypes
import functools
import importlib.util
import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tcbench.core.errors import TcbenchError
from tcbench.hardware import machine

CUDNN = "libcudnn.so.9"
_CUDA_MAJORS = (12, 13)
_COMPANIONS = (("cuBLASLt", "libcublasLt.so.{0}"), ("cuBLAS", "libcublas.so.{0}"))
_RUNTIME_NAME = "CUDNN_FRONTEND_CUDART_LIB_NAME"
"""The environment variable by which the frontend is told which runtime to open. Left to itself it takes that of CUDA 12
where a system has that too, and says so on stderr."""
_FRONTEND = "nvidia-cudnn-frontend"
_NEEDED = (
    "_execute_with_raw_ptrs",
    "_prepare_variant_pack_template",
    "_get_variant_pack_uids_sorted",
    "tensor_scalar",
    "build_plan_at_index",
    "serialize",
    "deserialize",
    "get_cuda_graph_retention",
)
_SYNC = "'uv sync --extra cuda12' (or cuda13, volta: `tcbench doctor` says which) installs it"


class LibraryError(TcbenchError):
    """A library that cuDNN needs is missing."""


def folders() -> Iterator[Path]:
    """The folders in which NVIDIA's wheels put libraries: nvidia/*/lib wherever Python looks for packages. A wheel that
    makes `nvidia` a package of its own hides those elsewhere from the import system."""
    spec = importlib.util.find_spec("nvidia")
    for place in pkgutil.extend_path(list(spec.submodule_search_locations or ()), "nvidia") if spec else ():
        yield from sorted(Path(place).glob("*/lib"))


def _places() -> Iterator[Path]:
    """In the order in which cuDNN's frontend looks for cuDNN: both must load the same file to share handles."""
    yield from (Path(place) for place in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if place)
    yield from folders()


def _open(name: str) -> ctypes.CDLL | None:
    for candidate in (*(str(place / name) for place in _places() if (place / name).exists()), name):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
    return None


def _majors() -> tuple[int, ...]:
    """The CUDA versions to look for: that of the installed cuDNN wheel, or any."""
    return tuple(m for m in _CUDA_MAJORS if machine.version(f"nvidia-cudnn-cu{m}") is not None) or _CUDA_MAJORS


@functools.cache
def cudnn_library() -> ctypes.CDLL:
    """libcudnn itself, with what it opens by name. Raises LibraryError."""
    library = _open(CUDNN)
    if library is None:
        raise LibraryError(f"cuDNN 9 ({CUDNN}) was not found: {_SYNC}")
    runtime()
    _nvrtc()
    for words, pattern in _COMPANIONS:
        _companion(words, pattern)
    return library


def runtime() -> None:
    """Load the CUDA runtime, and tell cuDNN's frontend which. Raises LibraryError."""
    loaded = _companion("the CUDA runtime", "libcudart.so.{0}")
    if len(loaded) == 1:
        os.environ.setdefault(_RUNTIME_NAME, *loaded)


def _nvrtc() -> dict[str, ctypes.CDLL]:
    """NVRTC, loaded after its built-in functions: it opens them by a bare name, and finds them neither in CUDA 13.0's
    wheels, which have no run path, nor beside a library that was loaded by its path. Raises LibraryError."""
    for place in _places():
        for path in (path for major in _majors() for path in place.glob(f"libnvrtc-builtins.so.{major}.*")):
            _open(path.name)
    return _companion("NVRTC", "libnvrtc.so.{0}")


def _companion(words: str, pattern: str) -> dict[str, ctypes.CDLL]:
    """Load a library that cuDNN needs, by name. Raises LibraryError."""
    names = [pattern.format(major) for major in _majors()]
    # All that are there: which CUDA a cuDNN outside the wheels was made for is not known.
    loaded = {name: library for name in names if (library := _open(name)) is not None}
    if not loaded:
        raise LibraryError(f"{words} ({' or '.join(names)}) was not found, which cuDNN needs: {_SYNC}")
    return loaded


@functools.cache
def version() -> str:
    """cuDNN's version as "9.28.0". Costs milliseconds, needs no driver. Raises LibraryError."""
    library = _open(CUDNN)
    if library is None:
        raise LibraryError(f"cuDNN 9 ({CUDNN}) was not found: {_SYNC}")
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = int(library.cudnnGetVersion())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


@functools.cache
def nvrtc_version() -> str:
    """NVRTC's version as "13.0"; of several that cuDNN may take, all. Raises LibraryError."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    versions = []
    for library in _nvrtc().values():
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        versions.append(f"{major.value}.{minor.value}")
    return ", ".join(versions)


@functools.cache
def frontend_version() -> str:
    """The version of cuDNN's frontend. Raises LibraryError."""
    installed = machine.version(_FRONTEND)
    if installed is None:
        raise LibraryError(f"cuDNN's frontend ({_FRONTEND}) is not installed: {_SYNC}")
    return installed


@functools.cache
def frontend() -> Any:
    """The module `cudnn`, ready to build plans, with a GPU or without. Raises LibraryError."""
    cudnn_library()
    installed = frontend_version()
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        raise LibraryError(
            "the NVIDIA driver's library (libcuda.so.1) was not found, which cuDNN needs even to plan for another GPU: "
            "install the driver, or on Debian without a GPU 'apt-get install libcuda1' (non-free)"
        ) from None
    try:
        import cudnn
    except ImportError as error:
        raise LibraryError(f"cuDNN's frontend {installed} cannot be imported ({error}): {_SYNC}") from None
    graph = graph_class(cudnn)
    missing = [name for name in _NEEDED if not hasattr(graph, name)]
    if missing:
        raise LibraryError(f"cuDNN's frontend {installed} lacks {missing[0]}, expected 1.32 or newer: {_SYNC}")
    return cudnn


def graph_class(cudnn: Any) -> Any:
    """The compiled graph. The frontend's Python class over it looks for engines of its own, which need PyTorch, and
    normalises every argument at every call."""
    compiled = getattr(cudnn, "_pybind_module", None)
    return getattr(compiled, "backend_graph", None) or getattr(cudnn, "pygraph", None)


def problem() -> str | None:
    """Why plans cannot be built here, in one line; None if they can."""
    try:
        frontend()
    except LibraryError as error:
        return str(error)
    return None
