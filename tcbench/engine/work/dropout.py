"""Dropout: sets each value to zero with a given probability and scales the others so that the mean stays the same.

The random numbers come from Philox4x32-10 with two numbers in device memory, a seed and a step count. So the mask is
the same on every device and in every layout, and changes at each replay of a recorded step.

Sources: N. Srivastava et al., "Dropout", 2014 (here with scaling during training, as in common frameworks);
J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Layout, Work, reads, updates, writes

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
PHILOX_WEYL = 0x9E3779B9, 0xBB67AE85


@dataclass(frozen=True)
class _Dropout(Work):
    """Base class for dropout on x (N, C, `pixels`), stored in `layout`.

    Philox turns the counter (i // 4, 0, count, 0) and the key (seed, 0) into four numbers. Value i in NCHW order is
    kept if number i % 4 is at least `threshold`."""

    numbers = ("n", "c", "pixels", "threshold", "scale")
    n: int
    c: int
    pixels: int
    layout: Layout
    dtype: DType
    ratio: float

    @property
    def size(self) -> int:
        return self.n * self.c * self.pixels

    @property
    def threshold(self) -> int:
        return round(self.ratio * 2**32)

    @property
    def scale(self) -> float:
        return 1 / (1 - self.ratio)

    def array(self, name: str) -> Array:
        if name == "counter":
            return (2,), "int64"
        return (self.size,), "uint8" if name == "kept" else self.dtype

    @property
    def flops(self) -> int:
        return self.size


class DropoutForward(_Dropout):
    """y = x * scale where a value is kept, else 0; `kept` is 1 or 0. `counter` holds the seed and the step count."""

    roles = reads("x", "counter") | writes("y", "kept")


class DropoutBackward(_Dropout):
    """gx = gy * scale where `kept` is 1, else 0. Increments the step count, so the next forward pass has a new mask."""

    roles = reads("gy", "kept") | updates("counter") | writes("gx")
