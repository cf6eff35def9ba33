"""The installed CUDA packages: whether they fit each other, the driver and the GPU, and whether their libraries load.

Also chooses the extra of pyproject.toml that suits a GPU and its driver. Only package metadata is read, except by
`trouble`, which loads the package."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tcbench.core import spawn
from tcbench.core.packages import Package
from tcbench.engine.accelerators.cuda.cudnn import libraries
from tcbench.engine.accelerators.cuda.driver import Gpus
from tcbench.hardware import machine
from tcbench.hardware.software import ServedVersions, Support
from tcbench.hardware.tensor_cores import Capability

_OLDEST_CAPABILITY = {12: (5, 0), 13: (7, 5)}
"""The oldest compute capability that each CUDA version supports. CUDA 13 dropped Volta (its release notes)."""

_FIRST_CUDA = {
    (7, 0): "9.0",
    (7, 5): "10.0",
    (8, 0): "11.0",
    (8, 6): "11.1",
    (8, 9): "11.8",
    (9, 0): "11.8",
    (10, 0): "12.8",
    (10, 3): "12.9",
    (12, 0): "12.8",
}
"""The first CUDA version that compiles for each compute capability. Source: CUDA's release notes."""

_CUDNN_SERVES: tuple[tuple[tuple[int, int, int], tuple[int, int, int] | None, Capability], ...] = (
    ((9, 0, 0), (9, 10, 2), (5, 0)),
    ((9, 11, 0), None, (7, 5)),
)
"""Ranges of cuDNN versions (first, last) with the oldest compute capability that they have code for; newest last.
Source: the support matrices of cuDNN 9.10.2 and 9.11.0, and the code in both libraries."""


@dataclass(frozen=True)
class Extra:
    """An extra of pyproject.toml with CUDA packages. `cudnn`: the newest version that it allows (None: any)."""

    name: str
    cuda: int
    cudnn: tuple[int, int, int] | None = None

    @property
    def oldest(self) -> Capability:
        """The oldest compute capability that both its CUDA and its cuDNN support."""
        return max(_OLDEST_CAPABILITY[self.cuda], _oldest_of_cudnn(self.cudnn))


EXTRAS = (Extra("cuda13", 13), Extra("cuda12", 12), Extra("volta", 12, (9, 10, 2)))
"""The extras, newest first. Only one of them can be installed in an environment."""

_CUPTI_FOR_CUDA_12 = (3, 12)
"""The newest Python version that cupti-python for CUDA 12 supports."""

SYNC = "uv sync --extra cuda12 (or cuda13, volta: `tcbench doctor` shows which)"
"""The command to show when GPU and driver are unknown."""


@dataclass(frozen=True)
class Part:
    """A library that is used in runs on a GPU.

    `why`: its purpose, for messages. `distributions`: package names, each with its CUDA version (None: any). `needed`:
    whether runs fail without it."""

    name: str
    why: str
    distributions: tuple[tuple[str, int | None], ...]
    needed: bool = True


CUPY = Part("CuPy", "arrays and streams on a GPU", (("cupy-cuda12x", 12), ("cupy-cuda13x", 13)))
CUDNN = Part("cuDNN", "convolutions and batch normalisation", (("nvidia-cudnn-cu12", 12), ("nvidia-cudnn-cu13", 13)))
FRONTEND = Part("cuDNN frontend", "cuDNN's graphs", (("nvidia-cudnn-frontend", None),))
NVRTC = Part("NVRTC", "kernels", (("nvidia-cuda-nvrtc-cu12", 12), ("nvidia-cuda-nvrtc", 13)))
NVML = Part("NVML", "clocks, power and temperature in records", (("nvidia-ml-py", None),), needed=False)
RUNTIME = Part(
    "CUDA runtime",
    "cuDNN's graphs, and headers for CuPy's kernels",
    (("nvidia-cuda-runtime-cu12", 12), ("nvidia-cuda-runtime", 13)),
)
CUPTI = Part("CUPTI", "`profile` to record kernels without Nsight Systems", (("cupti-python", None),), needed=False)
PARTS = (CUPY, CUDNN, FRONTEND, NVRTC, RUNTIME, NVML, CUPTI)


@dataclass(frozen=True)
class Installed:
    """An installed distribution of a part."""

    part: Part
    distribution: str
    version: str
    cuda: int | None

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def installed() -> tuple[Installed, ...]:
    """Return the installed distributions, in the order of PARTS."""
    return tuple(
        Installed(part, name, version, cuda)
        for part in PARTS
        for name, cuda in part.distributions
        if (version := machine.version(name)) is not None
    )


def cupy() -> Installed | None:
    """Return the installed CuPy, for any CUDA version. Its presence shows that the user means to use a GPU."""
    return next((package for package in installed() if package.part is CUPY), None)


def extra_for(gpus: Gpus) -> Extra:
    """Return the newest extra that supports all GPUs and that the driver can run, else the one with the oldest CUDA."""
    oldest = min((gpu.compute_capability for gpu in gpus.present), default=EXTRAS[0].oldest)
    serving = [extra for extra in EXTRAS if oldest >= extra.oldest] or [EXTRAS[-1]]
    driver = gpus.driver_cuda
    running = (extra for extra in serving if driver is None or driver[0] >= extra.cuda)
    return next(running, min(serving, key=lambda extra: extra.cuda))


def support(capability: Capability) -> Support:
    """Return the versions of CUDA and cuDNN that support a compute capability, and the newest such extra."""
    newest_cuda = max((major for major, oldest in _OLDEST_CAPABILITY.items() if capability >= oldest), default=None)
    last_cuda = None if newest_cuda == max(_OLDEST_CAPABILITY) else newest_cuda
    last_cudnn, extra = _newest_for(capability)
    return Support(
        (
            ServedVersions("CUDA", _FIRST_CUDA.get(capability), str(last_cuda) if last_cuda else None),
            ServedVersions("cuDNN", None, ".".join(map(str, last_cudnn)) if last_cudnn else None),
        ),
        extra.name if extra else None,
    )


def _newest_for(capability: Capability) -> tuple[tuple[int, int, int] | None, Extra | None]:
    """Return the last cuDNN version and the newest extra that support a compute capability. The version is None if the
    newest cuDNN supports it, or none does."""
    last = next((last for _, last, oldest in reversed(_CUDNN_SERVES) if capability >= oldest), None)
    return last, next((extra for extra in EXTRAS if capability >= extra.oldest), None)


def sync(extra: Extra) -> str:
    """Return the command that installs the packages of an extra."""
    return f"uv sync --extra {extra.name}"


def remedy(part: Part, extra: Extra) -> str:
    """Return the command that installs a missing part of an extra, or advice if no package suits."""
    if part is CUPTI and extra.cuda == 12 and sys.version_info[:2] > _CUPTI_FOR_CUDA_12:
        return "install Nsight Systems instead: for CUDA 12, cupti-python supports Python up to 3.12"
    return sync(extra)


def _oldest_of_cudnn(version: tuple[int, ...] | None) -> Capability:
    """Return the oldest compute capability that a version of cuDNN (None: the newest) has code for."""
    fitting = [oldest for first, _, oldest in _CUDNN_SERVES if version is None or version >= first]
    return fitting[-1] if fitting else _CUDNN_SERVES[0][-1]


def cudnn_misfit(capability: Capability) -> str | None:
    """Return why the installed cuDNN does not support a compute capability, with the command that helps. None if it
    does, or if cuDNN is not installed."""
    try:
        version = libraries.version()
    except libraries.LibraryError:
        return None
    if capability >= _oldest_of_cudnn(tuple(map(int, version.split(".")))):
        return None
    last, extra = _newest_for(capability)
    remedy = f"; the last version that does is {'.'.join(map(str, last))}: {sync(extra)}" if last and extra else ""
    return f"cuDNN {version} does not support compute capability {capability[0]}.{capability[1]}{remedy}"


class Cudnn(Package):
    """The package of cuDNN's frontend, whose cuDNN must support the GPU."""

    def misfit(self, compute_capability: Capability | None) -> str | None:
        return None if compute_capability is None else cudnn_misfit(compute_capability)


def misfits(distributions: tuple[Installed, ...], gpus: Gpus) -> tuple[str, ...]:
    """Return a line for each conflict: mixed CUDA versions, a driver that is too old, a GPU that is not supported.

    CuPy and cuDNN must be for the same CUDA version. NVRTC may differ: another framework may need it. For cuDNN's
    support of a GPU, the library that loads counts, not the package."""
    lines = []
    cuda_packages = [package for package in distributions if package.part in (CUPY, CUDNN)]
    majors = sorted({package.cuda for package in cuda_packages if package.cuda is not None})
    if len(majors) > 1:
        by_major = "; ".join(
            f"for CUDA {major}: {', '.join(str(package) for package in cuda_packages if package.cuda == major)}"
            for major in majors
        )
        lines.append(f"packages for two CUDA versions are mixed ({by_major})")
    for major in majors:
        if gpus.driver_cuda is not None and gpus.driver_cuda[0] < major:
            newest = ".".join(map(str, gpus.driver_cuda))
            lines.append(f"the driver is too old for packages for CUDA {major}: it supports CUDA up to {newest}")
        for gpu in gpus.present:
            if gpu.compute_capability < _OLDEST_CAPABILITY[major]:
                capability = ".".join(map(str, gpu.compute_capability))
                gpu_facts = f"cuda:{gpu.index} ({gpu.name}, compute capability {capability})"
                lines.append(f"CUDA {major} does not support {gpu_facts}")
    unsupported = ((gpu, cudnn_misfit(gpu.compute_capability)) for gpu in gpus.present)
    lines.extend(f"cuda:{gpu.index} ({gpu.name}): {misfit}" for gpu, misfit in unsupported if misfit)
    return tuple(lines)


def newer_cupti(gpus: Gpus) -> tuple[str, str] | None:
    """Return a warning that CUPTI is newer than the driver and the command that installs an older one, else None. CUPTI
    of CUDA 12 needs no warning: it works with every driver from CUDA 12.4 on."""
    version, driver = machine.version("nvidia-cuda-cupti"), gpus.driver_cuda
    if version is None or driver is None or driver[0] < EXTRAS[0].cuda:
        return None
    if tuple(map(int, version.split(".")[:2])) <= driver:
        return None
    below = f"<{driver[0]}.{driver[1] + 1}"
    command = f"{sync(EXTRAS[0])} -P 'cupti-python{below}' -P 'nvidia-cuda-cupti{below}'"
    limit = f"the driver, which supports CUDA up to {driver[0]}.{driver[1]}"
    return f"nvidia-cuda-cupti {version} is newer than {limit}: `profile` may not record with it", command


def trouble(part: Part) -> str | None:
    """Return why a part does not work, in one line, else None. Loads the part; for NVRTC, compiles a kernel."""
    try:
        _CHECKS[part.name]()
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


def _compile() -> None:
    """Compile a kernel in a fresh process, as a trial does: this process may already have loaded what a trial lacks."""
    with spawn.pool(1) as pool:
        pool.submit(_compile_here).result()


def _compile_here() -> None:
    """Compile a kernel in this process. Raises if NVRTC does not work."""
    from cupy.cuda import nvrtc

    from tcbench.engine.accelerators.cuda.kernels.compile import compile_uncached

    libraries.problem()  # loads the libraries; a missing one is the finding of another part
    compile_uncached("mean_loss.cu", (), max(nvrtc.getSupportedArchs()))


_CHECKS: dict[str, Callable[[], object]] = {
    CUPY.name: lambda: importlib.import_module("cupy"),
    CUDNN.name: lambda: libraries.version(),
    NVRTC.name: _compile,
    FRONTEND.name: lambda: libraries.frontend(),
    RUNTIME.name: lambda: libraries.runtime(),
    NVML.name: lambda: importlib.import_module("pynvml"),
    CUPTI.name: lambda: importlib.import_module("cupti.cupti"),
}
"""Functions by the name of a part; each raises if the part does not work."""
