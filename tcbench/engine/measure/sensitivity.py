"""Whether the loss of an own step depends on its whole batch, and on digits that a lower precision cannot hold.

The phase `forward` is repeated with other numbers in the batch, and losses are compared to the bit."""

import contextlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tcbench.core.errors import TcbenchError
from tcbench.engine.session import Probes, Session

_Probe = Callable[[], Iterable[Any]]
_Loss = Callable[[], float | None]


class ImpossibleError(TcbenchError):
    """A trial's results cannot be true. The message names the check that failed."""


def sensitivity_checks(session: Session, probes: Probes, n: int) -> Mapping[str, str]:
    """Return the names of the checks that passed for a batch of `n` samples, each with "". Raises ImpossibleError.

    They need a phase `forward` that computes the same loss if it is repeated, and a probe that returns no copies."""
    checks: dict[str, str] = {}
    with contextlib.suppress(AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        before = session.facts().loss
        place = [phase.name for phase in session.phases].index("forward")
        for phase in session.phases[:place]:
            phase.run()

        def loss() -> float | None:
            session.phases[place].run()
            return session.facts().loss

        first = loss()
        if probes.batch is None or first in (before, None) or first != loss():
            return checks
        if n > 1:
            _check_size(probes.batch, n, loss)
            checks["whole batch"] = ""
        for probe in filter(None, (probes.batch, probes.weights)):
            if probes.precision in _DIGITS and probes.precision in map(dtype_name, probe()):
                _check_precision(probe, probes.precision, loss)
                checks["precision"] = ""
                break
    return checks


def _check_size(batch: _Probe, n: int, loss: _Loss) -> None:
    """Check that the loss changes if copies of other samples replace the last eighth of the batch."""
    import numpy as np

    first, size = loss(), max(1, n // 8)
    arrays = [to_host(array).copy() for array in batch()]

    def loss_of(samples: Sequence[int]) -> float | None:
        return _loss_with(batch, [np.take(array, samples, array.shape.index(n)) for array in arrays], loss)

    starts = range(0, min(n - size, 3 * size), size)
    if all(loss_of([*range(n - size), *range(start, start + size)]) == first for start in starts):
        if loss_of([0] * n) == first:
            raise ImpossibleError("cached output: the loss does not depend on the batch")
        raise ImpossibleError(f"smaller batch than declared: the last {size} of {n} samples do not change the loss")


_DIGITS = {"float32": ("u4", 0xFFFF0000, 2.0**-13), "float64": ("u8", 0xFFFFE000_00000000, 2.0**-26)}
"""The mask of a number's first 8 significant bits, and a relative difference that numbers hold, by precision.

All lower precisions round the difference away: TensorFloat-32 and float16 have 11 significant bits, float32 has 24."""


def _check_precision(probe: _Probe, precision: str, loss: _Loss) -> None:
    """Check that the loss differs between numbers of 8 significant bits and ones with a digit that only the declared
    precision holds. Numbers too small for float16 are 0 in both."""
    (bits, mask, fine), arrays = _DIGITS[precision], [to_host(array).copy() for array in probe()]
    floats = [array for array in arrays if dtype_name(array) == precision]
    for array in floats:
        array.view(bits)[...] &= mask
        array[abs(array) < 2.0**-14] = 0
    coarse_loss = _loss_with(probe, arrays, loss)
    for array in floats:
        array.reshape(-1)[::2] *= 1 + fine
    if _loss_with(probe, arrays, loss) == coarse_loss:
        finding = f"numbers that differ by {fine:.0e} of their size give the same loss"
        raise ImpossibleError(f"lower precision than declared: {finding}, unlike in {precision}")


def _loss_with(probe: _Probe, arrays: Sequence[Any], loss: _Loss) -> float | None:
    """Return the loss with other numbers in a probe's arrays, which then get theirs back. Copies raise ValueError."""
    originals = [to_host(array).copy() for array in probe()]
    try:
        _write(probe(), arrays)
        if digest(map(to_host, probe())) != digest(arrays):
            raise ValueError("the probe returns copies")
        return loss()
    finally:
        _write(probe(), originals)


def _write(targets: Iterable[Any], arrays: Sequence[Any]) -> None:
    """Write the numbers of NumPy's arrays into arrays of NumPy, CuPy or PyTorch."""
    for target, array in zip(targets, arrays, strict=True):
        if hasattr(target, "detach"):
            target.detach().copy_(target.new_tensor(array))
        else:
            target.set(array) if hasattr(target, "get") else target.__setitem__(..., array)


def to_host(array: Any) -> Any:
    """Return an array of NumPy, CuPy or PyTorch as NumPy's, if possible without a copy. PyTorch's formats that NumPy
    lacks become float32."""
    import numpy as np

    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if dtype_name(array).startswith(("bfloat", "float8")) else array
    return np.asarray(array.get() if hasattr(array, "get") else array)


def dtype_name(array: Any) -> str:
    """Return the name of an array's dtype, without PyTorch's prefix."""
    return str(array.dtype).rpartition(".")[2]


def digest(arrays: Iterable[Any]) -> int:
    """Return a checksum of NumPy's arrays; 0 if all their numbers are 0."""
    checksum, is_zero = 0, True
    for array in arrays:
        contiguous = array if array.flags.c_contiguous else array.copy()
        checksum = zlib.crc32(contiguous.reshape(-1).view("u1").data, checksum)
        is_zero = is_zero and not array.any()
    return 0 if is_zero else checksum
