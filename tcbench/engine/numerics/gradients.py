"""Counts of gradients by power of two, from which the share that float16 loses follows for every loss scale.

Float16's rounding borders are powers of two or lie at a fixed place within one; values at those places are counted
separately."""

import numpy as np
import numpy.typing as npt

from tcbench.core.numerics import Magnitudes

_ALMOST, _NEARLY = 1 - 2.0**-11, 1 - 2.0**-12
"""(2 - 2^-10) / 2 and (2 - 2^-11) / 2: mantissas as frexp has them, from which on the last subnormal rounds up to the
smallest normal number, and the largest number to infinity."""


def count(values: npt.NDArray[np.floating]) -> Magnitudes:
    """Return the histogram of an array of any shape, float16 or float32."""
    magnitude = np.abs(np.asarray(values, np.float32)).ravel()
    finite = np.isfinite(magnitude)
    zeros = int(np.count_nonzero(magnitude == 0))
    not_finite = int(magnitude.size - np.count_nonzero(finite))
    mantissa, exponent = np.frexp(magnitude[finite & (magnitude > 0)])
    if not mantissa.size:
        return Magnitudes(lowest=0, counts=(), powers=(), almost=(), nearly=(), zeros=zeros, not_finite=not_finite)
    lowest, bins = int(exponent.min()) - 1, int(exponent.max() - exponent.min()) + 1

    def in_bins(chosen: npt.NDArray[np.bool_] | slice) -> tuple[int, ...]:
        # frexp's mantissas are from 0.5 to 1, so a number in [2^p, 2^(p+1)) has the exponent p + 1.
        return tuple(np.bincount(exponent[chosen] - 1 - lowest, minlength=bins).tolist())

    return Magnitudes(
        lowest=lowest,
        counts=in_bins(slice(None)),
        powers=in_bins(mantissa == 0.5),
        almost=in_bins(mantissa >= _ALMOST),
        nearly=in_bins(mantissa >= _NEARLY),
        zeros=zeros,
        not_finite=not_finite,
    )
