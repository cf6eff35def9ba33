"""Dropout: each value is zero with a probability, and what is kept is scaled so that the mean stays.

Source: N. Srivastava et al., "Dropout", 2014; scaled in training, as frameworks do it. Which are kept follows from two
numbers on the device, a seed and a count of steps, by Philox4x32-10 (J. Salmon et al., "Parallel Random Numbers: As
Easy as 1, 2, 3", 2011): the same on every device and in every layout, and another at each replay of a recorded step."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Layout, Work, reads, updates, writes

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
PHILOX_WEYL = 0x9E3779B9, 0xBB67AE85


@dataclass(frozen=True)
class _Dropout(Work):
    """On x (N, C, `pixels`), stored as the layout says. Value i of NCHW, counted from 0, is kept where lane i % 4 of
    Philox's block (i // 4, 0, count, 0) with the key (seed, 0) is at least `threshold`."""

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
    """y = x * scale where kept, else 0; `kept` is 1 or 0. counter: seed and count, which it leaves as they are."""

    roles = reads("x", "counter") | writes("y", "kept")


class DropoutBackward(_Dropout):
    """gx = gy * scale where kept, else 0; the count rises by one, so that the next forward pass keeps others."""

    roles = reads("gy", "kept") | updates("counter") | writes("gx")
