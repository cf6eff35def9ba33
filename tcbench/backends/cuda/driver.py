"""Which NVIDIA GPUs are there, asked of the driver itself: no framework import, a few milliseconds.

Source: CUDA Driver API, sections "Initialization", "Device Management" and "Version Management".
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

_NO_DEVICE = 100
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76
_MULTIPROCESSOR_COUNT = 16


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver names it."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int


@dataclass(frozen=True)
class Gpus:
    """What the driver answered. `problem` says in one line why `found` is empty."""

    found: tuple[Gpu, ...] = ()
    driver_cuda: tuple[int, int] | None = None
    problem: str | None = None


@functools.cache
def gpus() -> Gpus:
    """Ask the driver once per process."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Gpus(problem="no NVIDIA driver (libcuda.so.1 was not found)")
    status = cuda.cuInit(0)
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    driver_cuda = (version.value // 1000, version.value % 1000 // 10)
    count = ctypes.c_int()
    if status == 0:
        status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE or (status == 0 and count.value == 0):
        return Gpus(driver_cuda=driver_cuda, problem="the NVIDIA driver's library is there, but it finds no GPU")
    if status != 0:
        return Gpus(driver_cuda=driver_cuda, problem=f"the NVIDIA driver does not start (CUDA error {status})")
    return Gpus(tuple(_describe(cuda, index) for index in range(count.value)), driver_cuda)


def _describe(cuda: ctypes.CDLL, index: int) -> Gpu:
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name, len(name), device)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), which, device)
        return value.value

    return Gpu(
        index=index,
        name=name.value.decode(errors="replace"),
        compute_capability=(attribute(_COMPUTE_CAPABILITY_MAJOR), attribute(_COMPUTE_CAPABILITY_MINOR)),
        multiprocessors=attribute(_MULTIPROCESSOR_COUNT),
        memory_bytes=memory.value,
    )
