"""Messages of libraries when a GPU runs out of memory."""

import pytest

from tcbench.core.errors import OutOfDeviceMemory
from tcbench.engine.accelerators.out_of_memory import device_memory_error, from_error

GIB = 2**30


def test_what_is_said_names_what_was_asked_for_held_and_there():
    error = device_memory_error(requested_bytes=400 * 2**20, held_bytes=15 * GIB, device_bytes=16 * GIB)
    assert str(error) == "requested 400.0 MiB more; this process held at most 15.0 GiB; the GPU has 16.0 GiB"
    assert str(device_memory_error(requested_bytes=2 * GIB)) == "requested 2.0 GiB more"
    assert isinstance(error, MemoryError)


def test_the_allocators_own_error_gives_its_numbers():
    """CuPy's OutOfMemoryError is a MemoryError."""
    error = MemoryError(
        "Out of memory allocating 3,221,225,472 bytes (allocated so far: 1,073,741,824 bytes, limit set to: 0 bytes)."
    )
    assert str(from_error(error, device_bytes=4 * GIB)) == (
        "requested 3.0 GiB more; this process held at most 1.0 GiB; the GPU has 4.0 GiB"
    )
    assert "held at most 2.0 GiB" in str(from_error(error, held_bytes=2 * GIB))


@pytest.mark.parametrize(
    "message",
    [
        "cudaErrorMemoryAllocation: out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: cudnnFinalize Failed cudnn_status: CUDNN_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "nvJPEG error (5): NVJPEG_STATUS_ALLOCATOR_FAILURE",
        "Critical error in pipeline:\nCUDA allocation failed",
        "nvImageCodec failure: '#5'",
        "nvImageCodec failure: '#15'",
    ],
)
def test_every_librarys_words_are_understood(message):
    error = from_error(RuntimeError(message), device_bytes=GIB)
    assert str(error) == f"{' '.join(message.split())}; the GPU has 1.0 GiB"


def test_an_error_while_clearing_up_does_not_hide_what_came_before():
    try:
        try:
            raise OutOfDeviceMemory("requested 1 GiB more")
        finally:
            raise RuntimeError("the pool is gone")
    except RuntimeError as error:
        assert str(from_error(error)) == "requested 1 GiB more"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 9 TiB for an array"),
        RuntimeError("CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"),
        RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"),
        RuntimeError("nvImageCodec failure: '#1'"),
        RuntimeError("Can't allocate 4096 bytes on host."),
        ValueError(),
    ],
)
def test_other_errors_are_not_taken_for_it(error):
    assert from_error(error) is None


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["pool", "runtime"])
def test_on_a_gpu_asking_for_too_much_is_understood(how):
    import cupy

    total = cupy.cuda.Device().mem_info[1]
    with pytest.raises(Exception) as caught:
        cupy.cuda.alloc(2 * total) if how == "pool" else cupy.cuda.runtime.malloc(2 * total)
    assert from_error(caught.value, total) is not None
