"""CuPy's stand-in refuses what CuPy 14.2 refuses, and its pool hands out memory as CuPy's does (core.pyx, memory.pyx,
stream.pyx)."""

import ctypes

import numpy as np
import pytest
from fake_cupy import CUBLAS_HANDLE, CUSOLVER_HANDLE, CUDARuntimeError, Gpu, MemoryPool, OutOfMemoryError, install_cupy

MIB = 1 << 20


@pytest.fixture
def cupy(monkeypatch):
    return install_cupy(monkeypatch)


def test_a_device_array_does_not_become_a_numpy_array_nor_mix_with_one(cupy):
    device, host = cupy.ndarray((3,), np.float32), np.ones(3, np.float32)
    for wrong in (
        lambda: np.asarray(device),
        lambda: np.array(device),
        lambda: host + device,
        lambda: device + host,
        lambda: np.copyto(host, device),
        lambda: device.__setitem__(slice(None), host),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(AssertionError, match="a kernel of its own"):
        _ = device * 2


def test_while_a_stream_captures_nothing_waits_and_nothing_is_sent_from_memory_that_is_not_pinned(cupy):
    host = np.zeros(4, np.uint8)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        device, pinned = cupy.ndarray((4,), np.uint8), cupy.cuda.alloc_pinned_memory(4)
        runtime = cupy.cuda.runtime

        def send(source: int) -> None:
            runtime.memcpyAsync(device.data.ptr, source, 4, runtime.memcpyHostToDevice, stream.ptr)

        stream.begin_capture()
        for wrong, said in (
            (lambda: device.data.copy_from_host_async(pinned.ptr, 4, stream), "H2D transfers are disallowed"),
            (lambda: device.data.copy_from_host(pinned.ptr, 4), "synchronous API calls are disallowed"),
            (lambda: device.set(host, stream), "H2D transfers are disallowed"),
            (lambda: device.get(stream), "D2H transfers are disallowed"),
            (lambda: float(device), "D2H transfers are disallowed"),
            (stream.synchronize, "cudaErrorStreamCaptureUnsupported"),
            (lambda: send(host.ctypes.data), "cudaErrorStreamCaptureUnsupported"),
        ):
            with pytest.raises(RuntimeError, match=said):
                wrong()
        send(pinned.ptr)
        pinned[:4] = b"\1\2\3\4"
        stream.end_capture().launch(stream)
        assert device.get(stream).tolist() == [1, 2, 3, 4]
    with pytest.raises(CUDARuntimeError):
        stream.end_capture()
    with pytest.raises(RuntimeError, match="legacy"):
        cupy.cuda.Stream(null=True).begin_capture()


def test_the_legacy_stream_is_not_waited_for(cupy):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        device = cupy.ndarray((4,), np.uint8)
        device.data.copy_from_host(np.ones(4, np.uint8).ctypes.data, 4)
        assert device.get(stream).tolist() == [0xFF] * 4


def test_the_pool_cuts_the_smallest_block_that_fits_and_merges_neighbours_again(cupy):
    pool = MemoryPool()
    small, large = pool.malloc(MIB // 2), pool.malloc(4 * MIB)
    at_small, at_large = small.ptr, large.ptr
    del small, large
    first = pool.malloc(3 * MIB)
    second = pool.malloc(100)
    assert (first.ptr, second.ptr) == (at_large, at_small)
    third = pool.malloc(1 * MIB)  # what is left of the large one: the small one is not whole any more
    assert third.ptr == at_large + 3 * MIB
    pool.free_all_blocks()  # cut blocks stay
    assert pool.total_bytes() == 4 * MIB + MIB // 2
    del first, third
    assert pool.malloc(4 * MIB).ptr == at_large
    pool.free_all_blocks()
    assert pool.total_bytes() == MIB // 2
    del second


def test_streams_do_not_share_free_memory(cupy):
    pool = MemoryPool()
    pool.malloc(MIB)
    with cupy.cuda.Stream(non_blocking=True):
        pool.malloc(MIB)
    assert pool.total_bytes() == 2 * MIB


def test_a_pool_gives_free_blocks_back_before_it_says_that_memory_has_run_out(cupy, monkeypatch):
    monkeypatch.setattr(Gpu, "limit_bytes", 4 * MIB)
    pool = MemoryPool()
    pool.malloc(3 * MIB)
    kept = pool.malloc(4 * MIB)
    assert pool.total_bytes() == 4 * MIB
    with pytest.raises(OutOfMemoryError, match=r"allocating 512 bytes \(allocated so far: 4,194,304 bytes\)"):
        pool.malloc(1)
    del kept


def test_memory_that_went_back_to_the_device_cannot_be_reached(cupy):
    pool = MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc), cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        freed = cupy.ndarray((MIB,), np.uint8)
        freed.data.memset_async(0, MIB, stream)
        graph = stream.end_capture()
        del freed
        pool.free_all_blocks()
        with pytest.raises(CUDARuntimeError, match="cudaErrorIllegalAddress"):
            graph.launch(stream)


def test_cublas_and_cusolver_refuse_sizes_types_and_handles(cupy):
    """As `cublasSsyrk`, `cublasGemmEx`, `cusolverDnSpotrf` and `cusolverDnSpotrs` do, and CuPy before them."""
    blas, solver = cupy.cuda.cublas, cupy.cuda.cusolver
    with cupy.cuda.Stream(non_blocking=True):
        x, info = cupy.ndarray((4, 4), np.float32).data.ptr, cupy.ndarray((1,), np.int32).data.ptr
        one = ctypes.c_float(1)
        at, of_blas, of_solver = ctypes.addressof(one), CUBLAS_HANDLE, CUSOLVER_HANDLE
        scratch = solver.spotrf_bufferSize(of_solver, 1, 4, x, 4)
        work = cupy.ndarray((scratch,), np.float32).data.ptr
        for wrong, said in (
            (lambda: blas.ssyrk(of_solver, 1, 0, 4, 4, at, x, 4, at, x, 4), "CUBLAS_STATUS_NOT_INITIALIZED"),
            (lambda: blas.ssyrk(of_blas, 1, 0, 4, 2, at, x, 2, at, x, 4), "CUBLAS_STATUS_INVALID_VALUE"),
            (lambda: blas.ssyrk(of_blas, 1, 0, 4, 4096, at, x, 4, at, x, 4), "illegal memory access"),
            (lambda: _gemm(blas, at, x, 2, 4, 0), "CUBLAS_STATUS_INVALID_VALUE"),
            (lambda: _gemm(blas, at, x, 4, 4, 2), "CUBLAS_STATUS_NOT_SUPPORTED"),
            (lambda: solver.spotrf(of_blas, 1, 4, x, 4, work, scratch, info), "CUSOLVER_STATUS_NOT_INITIALIZED"),
            (lambda: solver.spotrf(of_solver, 1, 4, x, 3, work, scratch, info), "CUSOLVER_STATUS_INVALID_VALUE"),
            (lambda: solver.spotrf(of_solver, 1, 4, x, 4, work, 4, info), "CUSOLVER_STATUS_INVALID_VALUE"),
            (lambda: solver.spotrs(of_solver, 1, 4, 4, x, 4, x, 3, info), "CUSOLVER_STATUS_INVALID_VALUE"),
        ):
            with pytest.raises(RuntimeError, match=said):
                wrong()


def test_nccls_number_is_128_bytes_and_nothing_else(cupy):
    """As in CuPy from 14.0 on, whose `NcclCommunicator` takes `bytes`; it was a tuple before."""
    nccl = cupy.cuda.nccl
    number = nccl.get_unique_id()
    assert nccl.NcclCommunicator(2, number, 1)
    for wrong, error in ((tuple(number), TypeError), (None, TypeError), (number[1:], ValueError)):
        with pytest.raises(error, match="commId"):
            nccl.NcclCommunicator(2, wrong, 1)


def _gemm(blas, at, x, leading, result_leading, result_type):
    numbers = (0, 1, 4, 4, 1, at, x, 2, leading, x, 2, leading, at, x, result_type, result_leading)
    blas.gemmEx(CUBLAS_HANDLE, *numbers, blas.CUBLAS_COMPUTE_32F, blas.CUBLAS_GEMM_DEFAULT)
