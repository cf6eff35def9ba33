"""Kronecker factors by cuBLAS and their inverses by cuSOLVER, through CuPy's bindings.

Both libraries are column-major, so our lower triangle is their upper triangle. Calls run on the current stream, and
CuPy refuses them while that stream captures. CuPy is imported when an operation is prepared."""

import ctypes
from collections.abc import Callable
from typing import Any

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators.cuda import driver, packages
from tcbench.engine.work import BeginInverse, CholeskyInverse, EndInverse, KroneckerFactor, Work
from tcbench.engine.work.base import round_up

_ALIGNMENT = 256
"""The alignment of the parts of a workspace, in bytes."""

Solver = tuple[Callable[[tuple[int, ...], int], None], int]
"""A prepared operation: a function of (operands' addresses, workspace's address), and the workspace's size in bytes."""


def prepare(work: Work, kernel: Callable[[Work], Callable[..., None]]) -> Solver:
    """Prepare an operation on the current device and stream. `kernel` prepares one that a kernel of ours does.

    Raises SelectionError if cuBLAS or cuSOLVER does not load, ValueError for an operation that neither does."""
    if isinstance(work, KroneckerFactor):
        return _factor(work)
    if isinstance(work, CholeskyInverse):
        return _inverse(work, kernel)
    raise ValueError(f"{work.name} is neither cuBLAS's nor cuSOLVER's")


def _library(name: str) -> Any:
    """Return CuPy's module "cublas" or "cusolver". Raises SelectionError if it does not load."""
    import cupy

    try:
        return getattr(cupy.cuda, name)
    except ImportError as error:
        extra = packages.extra_for(driver.gpus())
        reason = " ".join(str(error).split())[:120]
        raise SelectionError(
            f"kfac on a GPU: {name} does not load ({reason}): uv sync --extra {extra.name} --extra cusolver{extra.cuda}"
        ) from None


def _factor(work: KroneckerFactor) -> Solver:
    """Prepare a Kronecker factor, the product of a matrix and its transpose.

    In float32, syrk computes one triangle. In 16 bits, gemm computes the whole product on Tensor Cores: syrk does not
    take 16 bits."""
    from cupy.cuda import device, runtime

    blas = _library("cublas")
    handle = device.get_cublas_handle()
    # cuBLAS reads these on the host at each call.
    alpha, beta, address = ctypes.c_float(work.scale), ctypes.c_float(work.decay), ctypes.addressof
    size, samples, upper = work.size, work.samples, blas.CUBLAS_FILL_MODE_UPPER
    by_sample = work.layout == "NHWC"
    n, t, leading = blas.CUBLAS_OP_N, blas.CUBLAS_OP_T, size if by_sample else samples
    op_a, op_b = (n, t) if by_sample else (t, n)

    def multiply_float32(addresses: tuple[int, ...], _workspace: int) -> None:
        x, factor = addresses
        blas.ssyrk(handle, upper, op_a, size, samples, address(alpha), x, leading, address(beta), factor, size)

    narrow = {"float16": runtime.CUDA_R_16F, "bfloat16": runtime.CUDA_R_16BF}.get(work.dtype)
    wide, compute, algorithm = runtime.CUDA_R_32F, blas.CUBLAS_COMPUTE_32F, blas.CUBLAS_GEMM_DEFAULT

    def multiply_16_bits(addresses: tuple[int, ...], _workspace: int) -> None:
        """Add the product to the factor by gemm, which reads 16 bits and writes float32."""
        x, factor = addresses
        blas.gemmEx(
            *(handle, op_a, op_b, size, size, samples, address(alpha), x, narrow, leading, x, narrow, leading),
            *(address(beta), factor, wide, size, compute, algorithm),
        )

    return multiply_float32 if narrow is None else multiply_16_bits, 0


def _inverse(work: CholeskyInverse, kernel: Callable[[Work], Callable[..., None]]) -> Solver:
    """Prepare an inverse as the solution X of A X = I, since CuPy binds cuSOLVER's potrf and potrs but not its potri.

    The host does not wait for cuSOLVER's `info`. A kernel reads it and fills the result with NaN if potrf failed."""
    from cupy.cuda import device

    solver, upper = _library("cusolver"), _library("cublas").CUBLAS_FILL_MODE_UPPER
    handle, size = device.get_cusolver_handle(), work.size
    lwork = solver.spotrf_bufferSize(handle, upper, size, 0, size)
    begin, end = kernel(BeginInverse(size)), kernel(EndInverse(size))
    scratch_offset = round_up(4 * size**2, _ALIGNMENT)
    info_offset = scratch_offset + round_up(4 * lwork, _ALIGNMENT)

    def run(addresses: tuple[int, ...], workspace: int) -> None:
        """Move the matrix to the workspace, decompose it, and solve for every column of the identity."""
        x, info = addresses
        potrf_info = workspace + info_offset
        begin(x, workspace)
        solver.spotrf(handle, upper, size, workspace, size, workspace + scratch_offset, lwork, potrf_info)
        # potrs reports only wrong arguments in its info, so it gets another address than potrf's.
        solver.spotrs(handle, upper, size, size, workspace, size, x, size, potrf_info + 4)
        end(potrf_info, x, info)

    return run, info_offset + 8
