"""Which CUDA packages are installed, whether they fit each other and the driver, and whether their libraries load.

Reads package metadata; `trouble` alone imports what it is asked about.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tcbench.backends.cuda.driver import Gpus

CUDA_MAJORS = (12, 13)
_OLDEST_CAPABILITY = {12: (5, 0), 13: (7, 5)}
"""What a CUDA version's compilers and libraries still know (release notes of CUDA 13: Volta and older are gone)."""


@dataclass(frozen=True)
class Part:
    """Something that a run on a GPU uses. `distributions` are its names, with the CUDA version each is made for (None:
    any)."""

    name: str
    why: str
    distributions: tuple[tuple[str, int | None], ...]
    needed: bool = True


CUPY = Part("CuPy", "arrays and streams on a GPU", (("cupy-cuda12x", 12), ("cupy-cuda13x", 13)))
CUDNN = Part("cuDNN", "convolutions and batch normalisation", (("nvidia-cudnn-cu12", 12), ("nvidia-cudnn-cu13", 13)))
FRONTEND = Part("cuDNN frontend", "cuDNN's graphs", (("nvidia-cudnn-frontend", None),))
NVRTC = Part("NVRTC", "kernels", (("nvidia-cuda-nvrtc-cu12", 12), ("nvidia-cuda-nvrtc", 13)))
NVML = Part("NVML", "clocks, power and temperature in records", (("nvidia-ml-py", None),), needed=False)
PARTS = (CUPY, CUDNN, FRONTEND, NVRTC, NVML)


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
        if (version := _version(name)) is not None
    )


def cupy() -> Installed | None:
    """CuPy, whichever it is: who has installed it means to use a GPU."""
    return next((one for one in installed() if one.part is CUPY), None)


def sync(major: int) -> str:
    """The command that installs them all."""
    return f"uv sync --extra cuda{major}"


def major_for(gpus: Gpus) -> int:
    """The CUDA version whose packages suit these GPUs: the newest that the driver runs and every GPU is known to."""
    fitting = [
        major
        for major in CUDA_MAJORS
        if (gpus.driver_cuda is None or gpus.driver_cuda[0] >= major)
        and all(gpu.compute_capability >= _OLDEST_CAPABILITY[major] for gpu in gpus.found)
    ]
    return max(fitting, default=min(CUDA_MAJORS))


def misfits(found: tuple[Installed, ...], gpus: Gpus) -> tuple[str, ...]:
    """What does not fit: packages for two CUDA versions, a driver too old for them, a GPU that they no longer know.

    CuPy and cuDNN have to agree; NVRTC of another version may be there for another framework.
    """
    said = []
    bound = [one for one in found if one.part in (CUPY, CUDNN)]
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
        for gpu in gpus.found:
            if gpu.compute_capability < _OLDEST_CAPABILITY[major]:
                capability = ".".join(map(str, gpu.compute_capability))
                said.append(
                    f"CUDA {major} no longer knows cuda:{gpu.index} ({gpu.name}, compute capability {capability})"
                )
    return tuple(said)


def trouble(part: Part) -> str | None:
    """Why a part does not work, in one line; None if it does. Loads it."""
    try:
        return _ATTEMPTS[part.name]()
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__


def _load_cupy() -> None:
    importlib.import_module("cupy")


def _load_nvrtc() -> None:
    """Where CuPy finds NVRTC is CuPy's matter."""
    cupy_cuda: Any = importlib.import_module("cupy.cuda")
    cupy_cuda.nvrtc.getVersion()


def _load_cudnn() -> None:
    from tcbench.backends.cuda.cudnn import libraries

    libraries.version()


def _load_frontend() -> str | None:
    from tcbench.backends.cuda.cudnn import libraries

    return libraries.problem()


def _load_nvml() -> None:
    importlib.import_module("pynvml")


_ATTEMPTS: dict[str, Callable[[], str | None]] = {
    CUPY.name: _load_cupy,
    CUDNN.name: _load_cudnn,
    NVRTC.name: _load_nvrtc,
    FRONTEND.name: _load_frontend,
    NVML.name: _load_nvml,
}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
