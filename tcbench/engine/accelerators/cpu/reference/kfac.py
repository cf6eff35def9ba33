"""K-FAC: Kronecker factors of a layer's curvature, and their inverses by SciPy's LAPACK."""

import functools
from typing import Any

import numpy as np
import threadpoolctl

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.operands import Operands, computes
from tcbench.engine.work import CholeskyInverse, DampFactors, KroneckerFactor

_ROWS = 256
"""Rows of a factor that one thread computes at a time."""


@computes(KroneckerFactor)
def factor(work: KroneckerFactor, a: Operands) -> None:
    """Compute factor = decay * factor + scale * x @ x.T, in blocks of rows up to the diagonal."""
    x = a.x if work.layout == "NCHW" else a.x.T

    def compute(span: tuple[int, int]) -> None:
        """Compute the rows `begin` to `end` of the lower triangle of the factor."""
        begin, end = span
        block = a.with_arrays({"factor": a.raw("factor")[begin:end, :end]})
        product = work.scale * (x[begin:end] @ x[:end].T)
        block.write(factor=product + work.decay * block.factor if work.decay else product)

    # The longest blocks come first, so that no thread starts one last.
    threads.run(compute, threads.spans(work.size, _ROWS)[::-1])


@computes(DampFactors)
def damp(work: DampFactors, a: Operands) -> None:
    """Add the damping to the diagonals of both factors, split by their mean diagonals (see DampFactors)."""
    mean_a, mean_g = (np.mean(np.diagonal(x), dtype=np.float64) for x in (a.a, a.g))
    pi = np.sqrt(mean_a / mean_g) if mean_a > 0 and mean_g > 0 else np.float64(1)
    for x, name, share in ((a.a, "damped_a", pi), (a.g, "damped_g", 1 / pi)):
        damped = x.copy()
        np.einsum("ii->i", damped)[...] += share * np.sqrt(work.damping)
        a.write(**{name: damped})


@computes(CholeskyInverse)
def cholesky_inverse(work: CholeskyInverse, a: Operands) -> None:
    """Invert x by potrf and potri. LAPACK is column-major, so it is told "upper" where we mean "lower"."""
    potrf, potri = _lapack(a.x.dtype.name)
    # A decomposition is a single call that cannot be cut into chunks, so LAPACK uses the threads itself.
    with threads.limited(_libraries(), threads.get_threads()):
        inverse, minor = potrf(a.x.T, lower=0, overwrite_a=1, clean=0)
        if not minor:
            inverse, minor = potri(inverse, lower=0, overwrite_c=1)
    if minor:
        a.write(x=np.nan, info=minor)
        return
    x = a.raw("x")
    if not np.may_share_memory(inverse, x):
        a.write(x=inverse.T)

    def mirror(span: tuple[int, int]) -> None:
        """Copy the rows `begin` to `end` of the lower triangle to the upper one."""
        begin, end = span
        x[:begin, begin:end] = x[begin:end, :begin].T
        square = np.tril(x[begin:end, begin:end])
        x[begin:end, begin:end] = square + np.tril(square, -1).T

    threads.run(mirror, threads.spans(work.size, _ROWS))


@functools.cache
def _lapack(dtype: str) -> Any:
    """Return LAPACK's functions potrf and potri for a dtype."""
    from scipy.linalg.lapack import get_lapack_funcs

    return get_lapack_funcs(("potrf", "potri"), dtype=np.dtype(dtype))


@functools.cache
def _libraries() -> list[Any]:
    """Return the controllers of SciPy's BLAS, which is not the same library as NumPy's."""
    controllers = threadpoolctl.ThreadpoolController().lib_controllers
    return [library for library in controllers if "scipy" in str(library.filepath)]
