"""Local response normalisation across channels, image by image."""

import numpy as np

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference.half import convert, load
from tcbench.engine.accelerators.cpu.threads import Array
from tcbench.engine.work import LrnBackward, LrnForward


def forward(work: LrnForward, x: Array, y: Array, sums: Array) -> None:
    """See LrnForward."""

    def compute(i: int) -> None:
        values = load(x[i : i + 1], "lrn.x")[0]
        total = _neighbours(work, values * values)
        total *= total.dtype.type(work.alpha)
        total += total.dtype.type(work.k)
        sums[i] = total
        convert((values * _power(total, work.beta))[None], y[i : i + 1])

    threads.run(compute, range(work.n))


def backward(work: LrnBackward, gy: Array, x: Array, sums: Array, gx: Array) -> None:
    """See LrnBackward."""

    def compute(i: int) -> None:
        gradient, values, total = load(gy[i : i + 1], "lrn.gy")[0], load(x[i : i + 1], "lrn.x")[0], sums[i]
        scaled = gradient * _power(total, work.beta)
        across = _neighbours(work, scaled * values / total)
        across *= values
        across *= across.dtype.type(-2 * work.alpha * work.beta)
        across += scaled
        convert(across[None], gx[i : i + 1])

    threads.run(compute, range(work.n))


def _neighbours(work: LrnForward | LrnBackward, values: Array) -> Array:
    """Sums over `size` channels around each, of one image."""
    sums: Array = values.copy()
    # Channels first, as a view.
    into, of = (sums, values) if work.layout == "NCHW" else (sums.T, values.T)
    for distance in range(1, min(work.size // 2, work.c - 1) + 1):
        into[distance:] += of[:-distance]
        into[:-distance] += of[distance:]
    return sums


def _power(total: Array, beta: float) -> Array:
    """total ** -beta; by square roots for the usual 0.75, which takes a tenth of the time."""
    if beta == 0.75:
        root = np.sqrt(total)
        power: Array = 1 / (root * np.sqrt(root))
        return power
    return np.asarray(total**-beta)
