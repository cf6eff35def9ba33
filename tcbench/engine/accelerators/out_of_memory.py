"""Recognising that a GPU is out of memory, and the error to raise.

Libraries report it in different ways: CuPy's allocator by its own exception; CUDA, cuDNN, cuBLAS, cuSOLVER, NVRTC,
nvJPEG and DALI by a status in the message of a general error. This module imports none of them."""

import re
from collections.abc import Iterator

from tcbench.core.errors import OutOfDeviceMemory

_STATUS = re.compile(
    r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUDNN_STATUS_ALLOC_FAILED|"
    r"CUDNN_STATUS_INTERNAL_ERROR_(DEVICE|HOST)_ALLOCATION_FAILED|CU(BLAS|SOLVER)_STATUS_ALLOC_FAILED|"
    r"NVJPEG_STATUS_ALLOCATOR_FAILURE|NVRTC_ERROR_OUT_OF_MEMORY|CUDA allocation failed|out of memory|"
    # DALI reports only nvImageCodec's number for NVIMGCODEC_STATUS_ALLOCATOR_FAILURE (5; 15 from its extensions).
    r"nvImageCodec failure: '#(5|15)'",
    re.IGNORECASE,
)
_CUPY = re.compile(r"Out of memory allocating ([\d,]+) bytes \(allocated so far: ([\d,]+) bytes")
_DALI = re.compile(r"Can't allocate (\d+) bytes on device \d+")
"""DALI's `CUDABadAlloc`, if it knows the requested size."""


def device_memory_error(
    requested_bytes: int | None = None,
    held_bytes: int | None = None,
    device_bytes: int | None = None,
    message: str | None = None,
) -> OutOfDeviceMemory:
    """Return an error that states the request, the most memory this process held, and the GPU's memory. `message`: a
    library's own message, shown if the size of the request is unknown."""
    facts = []
    if requested_bytes is not None:
        facts.append(f"requested {_size(requested_bytes)} more")
    elif message:
        facts.append(message)
    if held_bytes is not None:
        facts.append(f"this process held at most {_size(held_bytes)}")
    if device_bytes is not None:
        facts.append(f"the GPU has {_size(device_bytes)}")
    return OutOfDeviceMemory("; ".join(facts))


def from_error(
    error: BaseException, device_bytes: int | None = None, held_bytes: int | None = None
) -> OutOfDeviceMemory | None:
    """Return an OutOfDeviceMemory if the error or one of its causes means that the GPU is out of memory; else None.

    For its message, `device_bytes` is the GPU's memory, and `held_bytes` the most that this process has held."""
    for cause in _chain(error):
        if isinstance(cause, OutOfDeviceMemory):
            return cause
        message = " ".join(str(cause).split())
        if match := _CUPY.search(message):
            requested, allocated = (int(number.replace(",", "")) for number in match.groups())
            return device_memory_error(requested, held_bytes or allocated, device_bytes)
        if match := _DALI.search(message):
            return device_memory_error(int(match[1]), held_bytes, device_bytes)
        if _STATUS.search(message):
            return device_memory_error(None, held_bytes, device_bytes, message)
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of that, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"
