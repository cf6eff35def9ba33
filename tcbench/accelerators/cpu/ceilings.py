"""The host's ceilings: a matrix product by NumPy's BLAS, and passes over memory by all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tcbench.hardware import machine

ROUNDS = 9
"""Runs take turns, so that a machine whose speed drifts does so for all. A ceiling is the best of them, as in STREAM
(J. McCalpin, 1995): whatever else the machine does can only lower a rate."""
PRODUCT_SIZE = 2048
COPY_BYTES = 256 * 2**20
"""Of each array: far more than any cache holds."""


def measure(threads: int, size: int = PRODUCT_SIZE, n_bytes: int = COPY_BYTES, rounds: int = ROUNDS) -> dict[str, Any]:
    """float32 product of two size x size matrices (2 size^3 FLOP); and by all threads a copy of `n_bytes` and a scaling
    of them in place, each byte read once and written once. The faster of these two is the bandwidth: processors that
    fetch a line before they overwrite it move a third more for a copy than STREAM counts."""
    import numpy as np

    a = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    b, c = a.T.copy(), np.empty_like(a)
    source = np.ones(n_bytes // 4, np.float32)
    target = np.zeros_like(source)
    slices = [slice(len(source) * i // threads, len(source) * (i + 1) // threads) for i in range(threads)]

    def by_threads(run: Callable[[slice], object]) -> None:
        # NumPy lets go of the interpreter meanwhile.
        parts = [threading.Thread(target=run, args=(s,)) for s in slices]
        for part in parts:
            part.start()
        for part in parts:
            part.join()

    product_s, copy_s, scale_s = interleaved(
        (
            lambda: np.matmul(a, b, out=c),
            lambda: by_threads(lambda s: np.copyto(target[s], source[s])),
            lambda: by_threads(lambda s: np.multiply(target[s], np.float32(1), out=target[s])),
        ),
        rounds,
    )
    return {
        "device_name": machine.cpu_name(),
        "flops_s": {"fp32": 2 * size**3 / product_s},
        "bandwidth_bytes_s": 2 * source.nbytes / min(copy_s, scale_s),
        "says": f"a matrix product and passes over memory by {threads} thread{'s' if threads > 1 else ''}, measured",
    }


def interleaved(runs: tuple[Callable[[], Any], ...], rounds: int) -> list[float]:
    """Least seconds of each, one round of all after the other; a first round warms up and is not counted."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, seen in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            seen.append(time.perf_counter() - begin)
    return [min(seen[1:]) for seen in times]
