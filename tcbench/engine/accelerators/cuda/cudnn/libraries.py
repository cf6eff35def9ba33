"""Finding and loading cuDNN and the libraries that it needs, so that nobody has to set LD_LIBRARY_PATH.

Wheels for CUDA 12 have one folder per library (nvidia/cublas/lib, nvidia/cuda_nvrtc/lib); those for CUDA 13 share
nvidia/cu13/lib. Libraries open others by bare file name: cuDNN opens cuBLAS and NVRTC, its frontend opens the CUDA
runtime, and NVRTC its built-in functions. This works if the other library is already loaded."""

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

_RUNTIME_NAME = "CUDNN_FRONTEND_CUDART_LIB_NAME"
"""The environment variable that tells the frontend which CUDA runtime to open. Without it the frontend prefers the
runtime of CUDA 12 if the system has one, and prints a message on stderr."""
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
_SYNC = "run 'uv sync --extra cuda12' (or cuda13, volta: `tcbench doctor` shows which)"


class LibraryError(TcbenchError):
    """An error about a missing or unusable library that cuDNN needs."""


def folders() -> Iterator[Path]:
    """Yield the folders with libraries of NVIDIA's wheels: nvidia/*/lib in every folder of Python's packages.

    The import system may see only one `nvidia` folder: a wheel can make it a regular package that hides others."""
    spec = importlib.util.find_spec("nvidia")
    for place in pkgutil.extend_path(list(spec.submodule_search_locations or ()), "nvidia") if spec else ():
        yield from sorted(Path(place).glob("*/lib"))


def _places() -> Iterator[Path]:
    """Yield the folders to search, in the frontend's order: handles can be shared only if both load the same cuDNN."""
    yield from (Path(place) for place in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if place)
    yield from folders()


def _open(name: str) -> ctypes.CDLL | None:
    """Load a library from Python's packages, else from where the system finds it; None if it is not there."""
    for candidate in (*(str(place / name) for place in _places() if (place / name).exists()), name):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
    return None


def _majors() -> tuple[int, ...]:
    """Return the CUDA versions to look for: that of the installed cuDNN wheel, or all."""
    return tuple(m for m in _CUDA_MAJORS if machine.version(f"nvidia-cudnn-cu{m}") is not None) or _CUDA_MAJORS


@functools.cache
def cudnn_library() -> ctypes.CDLL:
    """Load libcudnn and the libraries that it opens by name; return libcudnn. Raises LibraryError."""
    library = _open_cudnn()
    runtime()
    _nvrtc()
    _companion("cuBLASLt", "libcublasLt.so.{0}")
    _companion("cuBLAS", "libcublas.so.{0}")
    return library


def _open_cudnn() -> ctypes.CDLL:
    if (library := _open(CUDNN)) is None:
        raise LibraryError(f"cuDNN 9 ({CUDNN}) was not found: {_SYNC}")
    return library


def runtime() -> None:
    """Load the CUDA runtime. If only one version is found, tell cuDNN's frontend to use it. Raises LibraryError."""
    loaded = _companion("the CUDA runtime", "libcudart.so.{0}")
    if len(loaded) == 1:
        os.environ.setdefault(_RUNTIME_NAME, *loaded)


def _nvrtc() -> dict[str, ctypes.CDLL]:
    """Load NVRTC's built-in functions, then NVRTC itself. Raises LibraryError.

    NVRTC opens the built-ins by bare name. It cannot find them in the wheels of CUDA 13.0, which have no run path."""
    for place in _places():
        for path in (path for major in _majors() for path in place.glob(f"libnvrtc-builtins.so.{major}.*")):
            _open(path.name)
    return _companion("NVRTC", "libnvrtc.so.{0}")


def _companion(title: str, pattern: str) -> dict[str, ctypes.CDLL]:
    """Load a library that cuDNN needs, in every installed version, and return it by file name. Raises LibraryError. All
    versions are loaded because the CUDA version of a cuDNN outside the wheels is unknown."""
    names = [pattern.format(major) for major in _majors()]
    loaded = {name: library for name in names if (library := _open(name)) is not None}
    if not loaded:
        raise LibraryError(f"{title} ({' or '.join(names)}), which cuDNN needs, was not found: {_SYNC}")
    return loaded


@functools.cache
def version() -> str:
    """Return cuDNN's version, such as "9.28.0". Takes milliseconds and needs no driver. Raises LibraryError."""
    library = _open_cudnn()
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = int(library.cudnnGetVersion())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


@functools.cache
def nvrtc_version() -> str:
    """Return the version of NVRTC, such as "13.0"; all of them if cuDNN may use several. Raises LibraryError."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    versions = []
    for library in _nvrtc().values():
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        versions.append(f"{major.value}.{minor.value}")
    return ", ".join(versions)


@functools.cache
def frontend_version() -> str:
    """Return the version of cuDNN's frontend. Raises LibraryError."""
    installed = machine.version(_FRONTEND)
    if installed is None:
        raise LibraryError(f"cuDNN's frontend ({_FRONTEND}) is not installed: {_SYNC}")
    return installed


@functools.cache
def frontend() -> Any:
    """Return the module `cudnn`, ready to build plans with or without a GPU. Raises LibraryError."""
    cudnn_library()
    installed = frontend_version()
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        raise LibraryError(
            "libcuda.so.1, the NVIDIA driver's library, was not found; cuDNN needs it even to plan for another GPU: "
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
    """Return the frontend's compiled graph class.

    Its Python wrapper is avoided: it looks for engines that need PyTorch and normalises all arguments at every call."""
    compiled = getattr(cudnn, "_pybind_module", None)
    return getattr(compiled, "backend_graph", None) or getattr(cudnn, "pygraph", None)


def problem() -> str | None:
    """Return why plans cannot be built on this machine, in one line; None if they can."""
    try:
        frontend()
    except LibraryError as error:
        return str(error)
    return None
