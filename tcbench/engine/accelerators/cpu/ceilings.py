"""Measured ceilings of the host: matrix products in each dtype by NumPy's BLAS and by oneDNN, and memory bandwidth."""

import threading
from collections.abc import Callable
from typing import Any

from tcbench.core.packages import ML_DTYPES
from tcbench.engine.accelerators.ceilings import launches, least_s, product
from tcbench.engine.clock import HostClock
from tcbench.hardware import machine

ROUNDS = 9
"""Rounds of each measurement. The ceiling is the best round, as in STREAM (J. McCalpin, 1995)."""
PRODUCT_SIZE = 2048
"""Rows and columns of the matrices."""
COPY_BYTES = 256 * 2**20
"""Size of each array: far more than any cache holds."""


def measure(threads: int, size: int = PRODUCT_SIZE, n_bytes: int = COPY_BYTES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure the host's FLOP/s by dtype and its memory bandwidth.

    FLOP/s: products of two size x size matrices (2 size^3 FLOP), in float32 and, with the extra `ladder` and if oneDNN
    loads, in both 16-bit dtypes. Bandwidth: the fastest of four passes over arrays of `n_bytes` by all threads, since
    CPUs that fetch a cache line before they overwrite it move a third more for a copy than STREAM counts, and some read
    faster than they write."""
    import numpy as np

    from tcbench.engine.accelerators.cpu.onednn import library

    a = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    b, c = a.T.copy(), np.empty_like(a)
    source = np.ones(n_bytes // 4, np.float32)
    target = np.zeros_like(source)
    slices = [slice(len(source) * i // threads, len(source) * (i + 1) // threads) for i in range(threads)]

    def by_threads(run: Callable[[slice], object]) -> None:
        """Call `run` for each slice in a thread of its own, and wait for all."""
        workers = [threading.Thread(target=run, args=(s,)) for s in slices]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    runs: dict[str, Callable[[], object]] = {
        "numpy": lambda: np.matmul(a, b, out=c),
        "copy": lambda: by_threads(lambda s: np.copyto(target[s], source[s])),
        "scale": lambda: by_threads(lambda s: np.multiply(target[s], np.float32(1), out=target[s])),
        "greater": lambda: by_threads(lambda s: np.maximum(target[s], source[s], out=target[s])),
        "greatest": lambda: by_threads(lambda s: np.max(source[s])),
    }
    arrays_moved = {"copy": 2, "scale": 2, "greater": 3, "greatest": 1}
    works = {"fp32": product(size, "float32")}
    if ML_DTYPES.is_installed() and not library.problem():
        from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator

        works |= {"fp16": product(size, "float16"), "bf16": product(size, "bfloat16")}
        runs |= launches(works, OneDnnAccelerator(threads))
    times_s = least_s(runs, HostClock(), rounds)
    times_s["fp32"] = min(times_s["numpy"], times_s.get("fp32", times_s["numpy"]))
    return {
        "device_name": machine.cpu_name(),
        "flops_s": {name: work.flops / times_s[name] for name, work in works.items()},
        "bandwidth_bytes_s": source.nbytes * max(count / times_s[name] for name, count in arrays_moved.items()),
        "says": f"measured: matrix products and memory passes on {threads} thread{'s' if threads > 1 else ''}",
    }
