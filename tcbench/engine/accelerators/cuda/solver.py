"""Kronecker factors by cuBLAS and their inverses by cuSOLVER, through CuPy's bindings.

Both libraries take matrices column by column: what is the lower triangle to us is the upper one to them. Every call
runs on the stream that is current, and CuPy refuses it while that stream captures. CuPy is imported when a work is
prepared."""

import ctypes
from collections.abc import Callable
from typing import Any

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators.cuda import driver, packages
from tcbench.engine.work import BeginInverse, CholeskyInverse, EndInverse, KroneckerFactor, Work
from tcbench.engine.work.base import round_up

_ALIGNMENT = 256
"""Bytes: of the parts of a workspace."""


Solver = tuple[Callable[[tuple[int, ...], int], None], int]
"""A prepared work: a function of its operands' addresses and a workspace's, and the bytes of that."""


def prepare(work: Work, kernel: Callable[[Work], Callable[..., None]]) -> Solver:
    """Prepare a work on the current device and stream. `kernel` prepares a kernel of ours. Raises SelectionError
    where cuBLAS or cuSOLVER does not load, ValueError for other works."""
    if isinstance(work, KroneckerFactor):
        return _factor(work)
    if isinstance(work, CholeskyInverse):
        return _inverse(work, kernel)
    raise ValueError(f"{work.name} is neither cuBLAS's nor cuSOLVER's")


def _library(name: str) -> Any:
    import cupy

    try:
        return getattr(cupy.cuda, name)
    except ImportError as error:
        extra = packages.extra_for(driver.gpus())
        first = " ".join(str(error).split())[:120]
        raise SelectionError(
            f"kfac on a GPU: {name} does not load ({first}): uv sync --extra {extra.name} --extra cusolver{extra.cuda}"
        ) from None


def _factor(work: KroneckerFactor) -> Solver:
    """Half of a product of float32 (syrk); of 16 bits the whole, on Tensor Cores, which syrk does not take."""
    from cupy.cuda import device, runtime

    blas = _library("cublas")
    handle = device.get_cublas_handle()
    # Read by cuBLAS on the host when it is called.
    alpha, beta, at = ctypes.c_float(work.scale), ctypes.c_float(work.decay), ctypes.addressof
    size, samples, upper = work.size, work.samples, blas.CUBLAS_FILL_MODE_UPPER
    by_sample = work.layout == "NHWC"
    n, t, leading = blas.CUBLAS_OP_N, blas.CUBLAS_OP_T, size if by_sample else samples
    first, second = (n, t) if by_sample else (t, n)

    def of_floats(addresses: tuple[int, ...], _workspace: int) -> None:
        x, factor = addresses
        blas.ssyrk(handle, upper, first, size, samples, at(alpha), x, leading, at(beta), factor, size)

    narrow = {"float16": runtime.CUDA_R_16F, "bfloat16": runtime.CUDA_R_16BF}.get(work.dtype)
    wide, compute, algorithm = runtime.CUDA_R_32F, blas.CUBLAS_COMPUTE_32F, blas.CUBLAS_GEMM_DEFAULT

    def of_halves(addresses: tuple[int, ...], _workspace: int) -> None:
        x, factor = addresses
        blas.gemmEx(
            *(handle, first, second, size, size, samples, at(alpha), x, narrow, leading, x, narrow, leading),
            *(at(beta), factor, wide, size, compute, algorithm),
        )

    return of_floats if narrow is None else of_halves, 0


def _inverse(work: CholeskyInverse, kernel: Callable[[Work], Callable[..., None]]) -> Solver:
    """X of A X = I: CuPy binds cuSOLVER's potrf and potrs, and not its potri. Nothing waits for `info`: a kernel reads
    it, and makes NaN of what could not be inverted."""
    from cupy.cuda import device

    solver, upper = _library("cusolver"), _library("cublas").CUBLAS_FILL_MODE_UPPER
    handle, size = device.get_cusolver_handle(), work.size
    lwork = solver.spotrf_bufferSize(handle, upper, size, 0, size)
    begin, end = kernel(BeginInverse(size)), kernel(EndInverse(size))
    scratch_at = round_up(4 * size**2, _ALIGNMENT)
    info_at = scratch_at + round_up(4 * lwork, _ALIGNMENT)

    def run(addresses: tuple[int, ...], workspace: int) -> None:
        x, info = addresses
        minor = workspace + info_at
        begin(x, workspace)
        solver.spotrf(handle, upper, size, workspace, size, workspace + scratch_at, lwork, minor)
        # Its own info speaks of its arguments only, and would take the place of the other.
        solver.spotrs(handle, upper, size, size, workspace, size, x, size, minor + 4)
        end(minor, x, info)

    return run, info_at + 8
