"""The dtypes of 16 bits, stored as such and computed in float32: which they are, and the way to float32 and back.

NumPy converts float16 one number at a time in software; here each step is an integer or float pass over a chunk that
stays in the L2 cache, several times faster and bit for bit the same. For bfloat16 ml_dtypes' own casts are as fast as
such passes (131,072 numbers on one core: 0.03 ms to float32, 0.1 ms back). NaN stays NaN (its payload is not compared).
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.threads import Array, scratch

CHUNK = 1 << 17
"""Elements per pass. Shorter ones fit in L2, but then threads meet at the interpreter lock too often."""

_INF16 = np.uint16(0x7C00)
_SIGN16 = np.uint16(0x8000)
_MAGNITUDE = np.int32(0x7FFFFFFF)
_EXPONENT = np.int32(0x7F800000)
_MIN_NORMAL = np.full(CHUNK, 113 << 23, np.int32)  # exponent of 2**-14, float16's smallest normal number
"""An array, since np.maximum with a scalar takes three times as long."""
_OVERFLOW = int(np.float32(65520.0).view(np.int32))  # the first number that rounds to infinity


INFINITY: dict[np.dtype[Any], int] = {np.dtype(np.float16): 0x7C00, np.dtype(ml_dtypes.bfloat16): 0x7F80}
"""The bits of infinity of each dtype of 16 bits; those of NaN lie above."""

_COMPUTED_IN: dict[np.dtype[Any], np.dtype[Any]] = {
    **dict.fromkeys(INFINITY, np.dtype(np.float32)),
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(np.float64): np.dtype(np.float64),
}


def compute_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The dtype that an op computes in: float32 for 16 bits, else the dtype itself. Raises ValueError for one that no
    op is written for."""
    try:
        return _COMPUTED_IN[np.dtype(dtype)]
    except KeyError:
        raise ValueError(
            f"on the host: expected float16, bfloat16, float32 or float64, got {np.dtype(dtype)}"
        ) from None


def is_widened(dtype: npt.DTypeLike) -> bool:
    """Whether ops compute in a wider dtype than this one, which is stored. Raises as `compute_dtype`."""
    return compute_dtype(dtype) != dtype


def _widen(h: Array, out: Array) -> None:
    """1-D contiguous float16 to float32, one chunk."""
    bits, wide = h.view(np.int16), out.view(np.int32)
    np.copyto(wide, bits)  # sign-extends
    np.left_shift(wide, 13, out=wide)
    np.bitwise_and(wide, np.int32(-0x70002000), out=wide)  # 0x8fffe000: the sign, and exponent and fraction
    np.multiply(out, np.float32(2.0**112), out=out)  # exact, subnormal numbers included
    if bits.max() >= 0x7C00 or h.view(np.uint16).max() >= 0xFC00:
        wide[(bits & np.int16(0x7FFF)) >= 0x7C00] |= _EXPONENT


def _narrow(s: Array, out: Array) -> None:
    """1-D contiguous float32 to float16, round to nearest even, one chunk. Adding c = 2**(e + 13), e the exponent of
    |s| but at least that of float16's smallest normal number, leaves |s| rounded to float16's precision in the low bits
    of the sum. c's own low 16 bits are zero, so what is left to add is the exponent, modulo 2**16."""
    bits, result = s.view(np.int32), out.view(np.uint16)
    a = scratch("half.a", s.shape, np.int32)
    c = scratch("half.c", s.shape, np.int32)
    sign = scratch("half.sign", s.shape, np.uint16)
    np.bitwise_and(bits, _MAGNITUDE, out=a)
    special = None
    if a.max() >= _OVERFLOW:
        special = a >= _OVERFLOW
        nan = a > _EXPONENT
        a[special] = 0
    np.bitwise_and(a, _EXPONENT, out=c)
    np.maximum(c, _MIN_NORMAL[: c.size], out=c)
    np.add(c, np.int32(13 << 23), out=c)
    np.add(a.view(np.float32), c.view(np.float32), out=a.view(np.float32))
    np.right_shift(c, 13, out=c)
    np.add(a, c, out=a)
    np.copyto(result, a, casting="unsafe")  # modulo 2**16
    np.subtract(result, np.uint16((126 << 10) & 0xFFFF), out=result)
    if special is not None:
        result[special] = _INF16
        result[nan] = np.uint16(0x7E00)
    np.right_shift(bits, 16, out=c)
    np.copyto(sign, c, casting="unsafe")
    np.bitwise_and(sign, _SIGN16, out=sign)
    np.bitwise_or(result, sign, out=result)


_KERNELS: dict[tuple[str, str], Callable[[Array, Array], None]] = {("e", "f"): _widen, ("f", "e"): _narrow}


def convert(source: Array, out: Array) -> Array:
    """Copies `source` into `out` (both contiguous, same size), converting if the dtypes differ; on this thread."""
    if source.dtype == out.dtype:
        np.copyto(out.reshape(source.shape), source)
        return out
    kernel = _KERNELS.get((source.dtype.char, out.dtype.char))
    if kernel is None:
        out.reshape(source.shape)[...] = source
        return out
    flat, flat_out = source.reshape(-1), out.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        kernel(flat[start : start + CHUNK], flat_out[start : start + CHUNK])
    return out


def load(source: Array, name: str) -> Array:
    """`source` in its compute dtype: itself, or converted into this thread's scratch memory `name`. A 16-bit source
    that is not contiguous is gathered first."""
    if not is_widened(source.dtype):
        return source
    if not source.flags.c_contiguous:
        gathered = scratch(name + ".half", source.shape, source.dtype)
        np.copyto(gathered, source)
        source = gathered
    return convert(source, scratch(name, source.shape, np.float32))


def is_finite(x: Array) -> Array:
    """As `numpy.isfinite`, which takes a float16 value by value."""
    if x.dtype != np.float16:
        return np.isfinite(x)
    finite: Array = np.bitwise_and(x.view(np.uint16), 0x7C00) != 0x7C00
    return finite


def cast(source: Array, dtype: npt.DTypeLike) -> Array:
    """`source` as `dtype`: itself if it is, else a fresh array, converted on all threads."""
    dtype = np.dtype(dtype)
    if source.dtype == dtype:
        return source
    out = np.empty(source.shape, dtype)
    cast_into(np.ascontiguousarray(source), out)
    return out


def cast_into(source: Array, out: Array) -> None:
    """`source` in `out`'s dtype, converted on all threads; both contiguous."""
    threads.by_chunks(convert, 4 * CHUNK, source.reshape(-1), out.reshape(-1))
