"""Kronecker factors of a layer's curvature, by products of NumPy's BLAS, and their inverses by SciPy's LAPACK."""

import functools
from typing import Any

import numpy as np
import threadpoolctl

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.half import cast
from tcbench.engine.accelerators.cpu.threads import Array, scratch
from tcbench.engine.work import CholeskyInverse, DampFactors, KroneckerFactor

_ROWS = 256
"""Rows of a factor that are one product."""


def factor(work: KroneckerFactor, x: Array, factor: Array) -> None:
    """A block of rows at a time, up to the diagonal: half the arithmetic of a whole product."""
    wide = cast(x, factor.dtype)
    by_size = wide if work.layout == "NCHW" else wide.T
    scale, decay = factor.dtype.type(work.scale), factor.dtype.type(work.decay)

    def compute(span: tuple[int, int]) -> None:
        begin, end = span
        product = scratch("kfac.rows", (end - begin, end), factor.dtype)
        np.matmul(by_size[begin:end], by_size[:end].T, out=product)
        product *= scale
        below = np.tri(end - begin, end, begin, bool)
        if work.decay:
            product += decay * factor[begin:end, :end]
        np.copyto(factor[begin:end, :end], product, where=below)

    # The longest first, so that no thread is left with it.
    threads.run(compute, threads.spans(work.size, _ROWS)[::-1])


def damp(work: DampFactors, a: Array, g: Array, damped_a: Array, damped_g: Array) -> None:
    """See DampFactors."""
    mean_a, mean_g = (np.mean(np.diagonal(x), dtype=np.float64) for x in (a, g))
    # Factors that are not finite are met again in the loss.
    with np.errstate(all="ignore"):
        pi = np.sqrt(mean_a / mean_g) if mean_a > 0 and mean_g > 0 else np.float64(1)
        for x, damped, by in ((a, damped_a, pi), (g, damped_g, 1 / pi)):
            np.copyto(damped, x)
            damped.reshape(-1)[:: len(x) + 1] += damped.dtype.type(by * np.sqrt(work.damping))


def cholesky_inverse(work: CholeskyInverse, x: Array, info: Array) -> None:
    """To LAPACK, whose matrices lie column by column, the lower triangle is the upper one."""
    potrf, potri = _lapack(work.dtype)
    columns = x.T
    # A decomposition is one call, which cannot be cut into chunks: here LAPACK has the threads.
    with threads.limited(_libraries(), threads.get_threads()):
        columns, minor = potrf(columns, lower=0, overwrite_a=1, clean=0)
        if not minor:
            columns, minor = potri(columns, lower=0, overwrite_c=1)
    if minor:
        x[...], info[0] = np.nan, minor
        return

    def mirror(span: tuple[int, int]) -> None:
        begin, end = span
        x[:begin, begin:end] = x[begin:end, :begin].T
        square = x[begin:end, begin:end]
        square[...] = np.tril(square) + np.tril(square, -1).T

    threads.run(mirror, threads.spans(work.size, _ROWS))


@functools.cache
def _lapack(dtype: str) -> Any:
    from scipy.linalg.lapack import get_lapack_funcs

    return get_lapack_funcs(("potrf", "potri"), dtype=np.dtype(dtype))


@functools.cache
def _libraries() -> list[Any]:
    """SciPy's BLAS, which is not NumPy's."""
    return [one for one in threadpoolctl.ThreadpoolController().lib_controllers if "scipy" in str(one.filepath)]
