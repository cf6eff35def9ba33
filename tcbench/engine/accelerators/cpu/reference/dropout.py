"""Dropout, with Philox4x32-10 over whole arrays."""

import numpy as np

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.half import compute_dtype, convert, load
from tcbench.engine.accelerators.cpu.threads import Array
from tcbench.engine.work import DropoutBackward, DropoutForward
from tcbench.engine.work.dropout import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def forward(work: DropoutForward, x: Array, counter: Array, y: Array, kept: Array) -> None:
    """See DropoutForward."""
    seed, count = (int(number) for number in counter)
    stored = kept.reshape((work.n, *((work.c, work.pixels) if work.layout == "NCHW" else (work.pixels, work.c))))

    def compute(image: int) -> None:
        values = work.c * work.pixels
        lanes = philox(image * values, values, seed, count)
        chosen = (lanes >= work.threshold).reshape(work.c, work.pixels)
        stored[image] = chosen if work.layout == "NCHW" else chosen.T

    threads.run(compute, range(work.n))
    _scaled(work, x, kept, y)


def backward(work: DropoutBackward, gy: Array, kept: Array, counter: Array, gx: Array) -> None:
    """See DropoutBackward."""
    counter[1] += 1
    _scaled(work, gy, kept, gx)


def _scaled(work: DropoutForward | DropoutBackward, x: Array, kept: Array, y: Array) -> None:
    values = load(x, "dropout.x")
    scale = compute_dtype(x.dtype).type(work.scale)
    convert(np.where(kept.view(np.bool_), values * scale, values.dtype.type(0)), y)


def philox(first: int, n: int, seed: int, count: int) -> Array:
    """Lanes `first` to `first` + n, uint64 below 2**32, of the blocks that `tcbench.engine.work.dropout` names."""
    begin = first // 4
    blocks = np.arange(begin, -(-(first + n) // 4), dtype=np.uint64)
    c0, c1, c2, c3 = blocks, np.zeros_like(blocks), np.full_like(blocks, count & 0xFFFFFFFF), np.zeros_like(blocks)
    keys = [seed & 0xFFFFFFFF, 0]
    for _ in range(PHILOX_ROUNDS):
        first_product, second_product = c0 * np.uint64(PHILOX_MULTIPLIERS[0]), c2 * np.uint64(PHILOX_MULTIPLIERS[1])
        c0 = (second_product >> _SHIFT) ^ c1 ^ np.uint64(keys[0])
        c2 = (first_product >> _SHIFT) ^ c3 ^ np.uint64(keys[1])
        c1, c3 = second_product & _LOW, first_product & _LOW
        keys = [(key + weyl) & 0xFFFFFFFF for key, weyl in zip(keys, PHILOX_WEYL, strict=True)]
    lanes: Array = np.stack([c0, c1, c2, c3], axis=1).reshape(-1)
    return lanes[first - 4 * begin : first - 4 * begin + n]
