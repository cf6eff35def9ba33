"""Out of memory on a GPU: which errors mean it, and what is said then.

Every library on the way says it in its own words: CuPy's allocator with an exception of its own, CUDA, cuDNN, cuBLAS,
cuSOLVER, NVRTC, nvJPEG and DALI with a status inside a general error's message. Imports none of them."""

import re
from collections.abc import Iterator

from tcbench.core.errors import OutOfDeviceMemory

_SAID = re.compile(
    r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUDNN_STATUS_ALLOC_FAILED|"
    r"CUDNN_STATUS_INTERNAL_ERROR_(DEVICE|HOST)_ALLOCATION_FAILED|CU(BLAS|SOLVER)_STATUS_ALLOC_FAILED|"
    r"NVJPEG_STATUS_ALLOCATOR_FAILURE|NVRTC_ERROR_OUT_OF_MEMORY|CUDA allocation failed|out of memory|"
    # nvImageCodec's status alone, as DALI tells it: NVIMGCODEC_STATUS_ALLOCATOR_FAILURE, its own and its extensions'.
    r"nvImageCodec failure: '#(5|15)'",
    re.IGNORECASE,
)
_CUPY = re.compile(r"Out of memory allocating ([\d,]+) bytes \(allocated so far: ([\d,]+) bytes")
_DALI = re.compile(r"Can't allocate (\d+) bytes on device \d+")
"""`CUDABadAlloc` in DALI's headers, where it knows what was asked for."""


def spent(
    asked_bytes: int | None = None,
    held_bytes: int | None = None,
    device_bytes: int | None = None,
    said: str | None = None,
) -> OutOfDeviceMemory:
    """The error to raise, with its one line: what was asked for, the most that this process held before, what the GPU
    has. `said` is a library's own line, for where what was asked for is not known."""
    facts = []
    if asked_bytes is not None:
        facts.append(f"{_size(asked_bytes)} more asked for")
    elif said:
        facts.append(said)
    if held_bytes is not None:
        facts.append(f"at most {_size(held_bytes)} held before")
    if device_bytes is not None:
        facts.append(f"the GPU has {_size(device_bytes)}")
    return OutOfDeviceMemory(", ".join(facts))


def from_error(
    error: BaseException, device_bytes: int | None = None, held_bytes: int | None = None
) -> OutOfDeviceMemory | None:
    """The error as one of ours when it, or one that led to it, means that the GPU's memory is spent; else None."""
    for one in _chain(error):
        if isinstance(one, OutOfDeviceMemory):
            return one
        message = " ".join(str(one).split())
        if match := _CUPY.search(message):
            asked, allocated = (int(number.replace(",", "")) for number in match.groups())
            return spent(asked, held_bytes or allocated, device_bytes)
        if match := _DALI.search(message):
            return spent(int(match[1]), held_bytes, device_bytes)
        if _SAID.search(message):
            return spent(None, held_bytes, device_bytes, message)
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from, newest first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"
