"""The CUDA packages that are installed, whether they fit each other, the driver and the GPU, and whether their
libraries load; and which of pyproject.toml's extras suits a GPU and its driver.

Reads package metadata; `trouble` alone tries what it is asked about."""

import importlib
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tcbench.core import spawn
from tcbench.engine.accelerators.cuda.cudnn import libraries
from tcbench.engine.accelerators.cuda.driver import Gpus
from tcbench.engine.accelerators.device import Served, Support
from tcbench.engine.rung import Package
from tcbench.hardware import machine
from tcbench.hardware.tensor_cores import Capability

_OLDEST_CAPABILITY = {12: (5, 0), 13: (7, 5)}
"""The oldest that a CUDA version's compilers and libraries support (release notes of
CUDA 13: Volta and older are gone)."""

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
"""The CUDA that first compiled for a compute capability. Source: the release notes of each."""

_CUDNN_SERVES: tuple[tuple[tuple[int, int, int], tuple[int, int, int] | None, Capability], ...] = (
    ((9, 0, 0), (9, 10, 2), (5, 0)),
    ((9, 11, 0), None, (7, 5)),
)
"""cuDNN's versions, from and to, and the oldest compute capability that they have code for; the newest last. Source:
the support matrices of cuDNN 9.10.2 and 9.11.0, and the code that lies in both libraries."""


@dataclass(frozen=True)
class Extra:
    """One of pyproject.toml's sets of CUDA packages. `cudnn`: the newest version that it allows; None: any."""

    name: str
    cuda: int
    cudnn: tuple[int, int, int] | None = None

    @property
    def oldest(self) -> Capability:
        """The oldest compute capability that all of it serves."""
        return max(_OLDEST_CAPABILITY[self.cuda], _oldest_of_cudnn(self.cudnn))


EXTRAS = (Extra("cuda13", 13), Extra("cuda12", 12), Extra("volta", 12, (9, 10, 2)))
"""The newest first. Each needs an environment of its own."""

_CUPTI_FOR_CUDA_12 = (3, 12)
"""The newest Python that cupti-python for CUDA 12 is made for."""

SYNC = "uv sync --extra cuda12 (or cuda13, volta: `tcbench doctor` says which)"
"""The remedy while GPU and driver are not known."""


@dataclass(frozen=True)
class Part:
    """Something that a run on a GPU uses. `distributions`: its names, and the CUDA version each is for (None: any)."""

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
    """A distribution that is there."""

    part: Part
    distribution: str
    version: str
    cuda: int | None

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def installed() -> tuple[Installed, ...]:
    """All that are there, in the order of PARTS."""
    return tuple(
        Installed(part, name, version, cuda)
        for part in PARTS
        for name, cuda in part.distributions
        if (version := machine.version(name)) is not None
    )


def cupy() -> Installed | None:
    """CuPy, whichever it is: who has installed it means to use a GPU."""
    return next((one for one in installed() if one.part is CUPY), None)


def extra_for(gpus: Gpus) -> Extra:
    """The packages that suit these GPUs: the newest that the driver runs and that serve every one of them."""
    oldest = min((gpu.compute_capability for gpu in gpus.present), default=EXTRAS[0].oldest)
    serving = [extra for extra in EXTRAS if oldest >= extra.oldest] or [EXTRAS[-1]]
    driver = gpus.driver_cuda
    running = (extra for extra in serving if driver is None or driver[0] >= extra.cuda)
    return next(running, min(serving, key=lambda extra: extra.cuda))


def support(capability: Capability) -> Support:
    """The versions of CUDA and cuDNN that serve GPUs of this compute capability, and the newest packages that do."""
    newest_cuda = max((major for major, oldest in _OLDEST_CAPABILITY.items() if capability >= oldest), default=None)
    last_cuda = None if newest_cuda == max(_OLDEST_CAPABILITY) else newest_cuda
    last_cudnn, extra = _newest_for(capability)
    return Support(
        (
            Served("CUDA", _FIRST_CUDA.get(capability), str(last_cuda) if last_cuda else None),
            Served("cuDNN", None, ".".join(map(str, last_cudnn)) if last_cudnn else None),
        ),
        extra.name if extra else None,
    )


def _newest_for(capability: Capability) -> tuple[tuple[int, int, int] | None, Extra | None]:
    """The last cuDNN that serves this compute capability (None: the newest, or none does), and the newest packages."""
    last = next((last for _, last, oldest in reversed(_CUDNN_SERVES) if capability >= oldest), None)
    return last, next((extra for extra in EXTRAS if capability >= extra.oldest), None)


def sync(extra: Extra) -> str:
    """The command that installs them all."""
    return f"uv sync --extra {extra.name}"


def remedy(part: Part, extra: Extra) -> str:
    """The command or advice where a part of the extra is missing."""
    if part is CUPTI and extra.cuda == 12 and sys.version_info[:2] > _CUPTI_FOR_CUDA_12:
        return "install Nsight Systems instead: for CUDA 12, cupti-python is made for Python up to 3.12"
    return sync(extra)


def _oldest_of_cudnn(version: tuple[int, ...] | None) -> Capability:
    """The oldest compute capability that a version of cuDNN has code for; None: the newest version."""
    fitting = [oldest for first, _, oldest in _CUDNN_SERVES if version is None or version >= first]
    return fitting[-1] if fitting else _CUDNN_SERVES[0][-1]


def cudnn_misfit(capability: Capability) -> str | None:
    """Why the cuDNN that is here cannot serve a GPU of this compute capability, with the one that can and the command
    that installs it; None if it can, or where there is no cuDNN."""
    try:
        version = libraries.version()
    except libraries.LibraryError:
        return None
    if capability >= _oldest_of_cudnn(tuple(map(int, version.split(".")))):
        return None
    last, extra = _newest_for(capability)
    which = f"; {'.'.join(map(str, last))} is the last that has: {sync(extra)}" if last and extra else ""
    return f"cuDNN {version} has no code for compute capability {capability[0]}.{capability[1]}{which}"


class Cudnn(Package):
    """cuDNN's frontend, over a cuDNN that has to serve the GPU."""

    def misfit(self, compute_capability: Capability | None) -> str | None:
        return None if compute_capability is None else cudnn_misfit(compute_capability)


def misfits(those: tuple[Installed, ...], gpus: Gpus) -> tuple[str, ...]:
    """Misfits, one line each: packages for two CUDA versions, a driver too old for them, a GPU that they no longer
    know. CuPy and cuDNN have to agree; NVRTC of another version may be there for another framework. What cuDNN serves
    is asked of the library that is loaded, wherever it comes from."""
    said = []
    bound = [one for one in those if one.part in (CUPY, CUDNN)]
    majors = sorted({one.cuda for one in bound if one.cuda is not None})
    if len(majors) > 1:
        by_major = "; ".join(
            f"for CUDA {major}: {', '.join(str(one) for one in bound if one.cuda == major)}" for major in majors
        )
        said.append(f"packages for two CUDA versions are mixed ({by_major})")
    for major in majors:
        if gpus.driver_cuda is not None and gpus.driver_cuda[0] < major:
            newest = ".".join(map(str, gpus.driver_cuda))
            said.append(f"the driver is too old for packages for CUDA {major}: it runs CUDA up to {newest}")
        for gpu in gpus.present:
            if gpu.compute_capability < _OLDEST_CAPABILITY[major]:
                capability = ".".join(map(str, gpu.compute_capability))
                said.append(
                    f"CUDA {major} no longer knows cuda:{gpu.index} ({gpu.name}, compute capability {capability})"
                )
    said.extend(
        f"cuda:{gpu.index} ({gpu.name}): {misfit}"
        for gpu in gpus.present
        if (misfit := cudnn_misfit(gpu.compute_capability))
    )
    return tuple(said)


def newer_cupti(gpus: Gpus) -> tuple[str, str] | None:
    """Return that CUPTI is newer than the driver, and the command that installs one that is not; None where it is not,
    or where it is CUPTI of CUDA 12, which takes every driver of that CUDA from 12.4 on."""
    version, driver = machine.version("nvidia-cuda-cupti"), gpus.driver_cuda
    if version is None or driver is None or driver[0] < EXTRAS[0].cuda:
        return None
    if tuple(map(int, version.split(".")[:2])) <= driver:
        return None
    below = f"<{driver[0]}.{driver[1] + 1}"
    command = f"{sync(EXTRAS[0])} -P 'cupti-python{below}' -P 'nvidia-cuda-cupti{below}'"
    runs = f"the driver, which runs CUDA up to {driver[0]}.{driver[1]}"
    return f"nvidia-cuda-cupti {version} is newer than {runs}: `profile` may not record with it", command


def trouble(part: Part) -> str | None:
    """Why a part does not work, in one line; None if it does. Loads it, and compiles with a compiler."""
    try:
        _ATTEMPTS[part.name]()
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


def _compile() -> None:
    """In a process of its own: what CuPy finds, or an earlier attempt has loaded, a trial may lack."""
    with ProcessPoolExecutor(1, spawn.context()) as pool:
        pool.submit(_compile_as_a_trial_does).result()


def _compile_as_a_trial_does() -> None:
    from cupy.cuda import nvrtc

    from tcbench.engine.accelerators.cuda.kernels.compile import compile_anew

    libraries.problem()  # loads what it can; what it lacks is another part's finding
    compile_anew("mean_loss.cu", (), max(nvrtc.getSupportedArchs()))


_ATTEMPTS: dict[str, Callable[[], object]] = {
    CUPY.name: lambda: importlib.import_module("cupy"),
    CUDNN.name: lambda: libraries.version(),
    NVRTC.name: _compile,
    FRONTEND.name: lambda: libraries.frontend(),
    RUNTIME.name: lambda: libraries.runtime(),
    NVML.name: lambda: importlib.import_module("pynvml"),
    CUPTI.name: lambda: importlib.import_module("cupti.cupti"),
}
"""What raises where a part does not work."""
