"""The NVIDIA GPUs of this machine, as the driver reports them. Takes a few milliseconds and imports no framework.

Sources: CUDA Driver API, sections "Initialization", "Device Management", "Version Management" and "Profiler Control".
The version of the kernel module is read from /proc/driver/nvidia/version."""

import contextlib
import ctypes
import functools
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tcbench.core.record import GpuFacts

_LOG = logging.getLogger(__name__)
_NO_DEVICE = 100
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76
_MULTIPROCESSOR_COUNT = 16

_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver describes it.

    `index` is CUDA's number, which depends on CUDA_VISIBLE_DEVICES. Other tools identify the GPU by `pci_bus_id`
    ("0000:3B:00.0")."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    pci_bus_id: str | None = None


@dataclass(frozen=True)
class Gpus:
    """The GPUs that the driver lists, and the CUDA version that it supports. `problem`: why there are none."""

    present: tuple[Gpu, ...] = ()
    driver_cuda: tuple[int, int] | None = None
    problem: str | None = None


def facts(index: int) -> GpuFacts | None:
    """Return a record's facts about the GPU that CUDA calls `index`; None if there is no such GPU."""
    listed = gpus()
    gpu = next((gpu for gpu in listed.present if gpu.index == index), None)
    if gpu is None:
        return None
    fields = {name: value for name, value in vars(gpu).items() if name != "index"}
    driver_cuda = "{}.{}".format(*listed.driver_cuda) if listed.driver_cuda else None
    return GpuFacts(**fields, driver=version(), driver_cuda=driver_cuda)


@contextlib.contextmanager
def profiled() -> Iterator[None]:
    """Bracket the steps that a profiler is to record with cuProfilerStart and cuProfilerStop.

    `nsys profile --capture-range=cudaProfilerApi` records between the two calls. Both need a CUDA context that is
    current on this thread."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str) -> None:
        if status := getattr(cuda, name)():
            _LOG.warning("%s: CUDA error %d: the profiler records nothing", name, status)

    call("cuProfilerStart")
    try:
        yield
    finally:
        call("cuProfilerStop")


def synchronize() -> None:
    """Wait for all streams of the CUDA context that is current in this thread, as cuCtxSynchronize does (CUDA Driver
    API, "Context Management"). PyTorch and CuPy share the primary context. An error is left to the step's next call."""
    ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()


def version() -> str | None:
    """Return the version of the driver's kernel module, such as "580.65.06"."""
    try:
        text = _VERSION.read_text()
    except OSError:
        return None
    match = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None


@functools.cache
def gpus() -> Gpus:
    """Return the GPUs of this machine. The driver is asked once per process."""
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
        return Gpus((), driver_cuda, "no NVIDIA GPU (the driver's library, libcuda.so.1, finds none)")
    if status != 0:
        return Gpus((), driver_cuda, f"no usable NVIDIA driver (it does not start: CUDA error {status})")
    return Gpus(tuple(_describe(cuda, index) for index in range(count.value)), driver_cuda)


def _describe(cuda: ctypes.CDLL, index: int) -> Gpu:
    """Return the facts of a GPU, from the CUDA driver."""
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name, len(name), device)
    pci_bus_id = ctypes.create_string_buffer(32)
    has_pci_bus_id = cuda.cuDeviceGetPCIBusId(pci_bus_id, len(pci_bus_id), device) == 0
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    capability = attribute(_COMPUTE_CAPABILITY_MAJOR), attribute(_COMPUTE_CAPABILITY_MINOR)
    title, place = name.value.decode(errors="replace"), pci_bus_id.value.decode() if has_pci_bus_id else None
    return Gpu(index, title, capability, attribute(_MULTIPROCESSOR_COUNT), memory.value, place)
