"""The host's ceilings: a matrix product in each dtype by NumPy's BLAS and by oneDNN, and passes over memory by all
threads."""

import threading
from collections.abc import Callable
from typing import Any

from tcbench.engine.accelerators.ceilings import launches, least_s, product
from tcbench.engine.clock import HostClock
from tcbench.hardware import machine

ROUNDS = 9
"""A ceiling is the best of them, as in STREAM (J. McCalpin, 1995)."""
PRODUCT_SIZE = 2048
COPY_BYTES = 256 * 2**20
"""Of each array: far more than any cache holds."""


def measure(threads: int, size: int = PRODUCT_SIZE, n_bytes: int = COPY_BYTES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Products of two size x size matrices (2 size^3 FLOP), in float32 and, where oneDNN loads, in 16 bits, as training
    asks for it; and passes over arrays of `n_bytes` by all threads: a copy, a scaling in place, the greater of two in
    place of one, and the greatest of all, which only reads. The fastest is the bandwidth: processors that fetch a line
    before they overwrite it move a third more for a copy than STREAM counts, and some read faster than they write."""
    import numpy as np

    from tcbench.engine.accelerators.cpu.onednn import library
    from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator

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

    runs: dict[str, Callable[[], object]] = {
        "numpy": lambda: np.matmul(a, b, out=c),
        "copy": lambda: by_threads(lambda s: np.copyto(target[s], source[s])),
        "scale": lambda: by_threads(lambda s: np.multiply(target[s], np.float32(1), out=target[s])),
        "greater": lambda: by_threads(lambda s: np.maximum(target[s], source[s], out=target[s])),
        "greatest": lambda: by_threads(lambda s: np.max(source[s])),
    }
    passes = {"copy": 2, "scale": 2, "greater": 3, "greatest": 1}  # over an array
    works = {"fp32": product(size, "float32")}
    if not library.problem():
        works |= {"fp16": product(size, "float16"), "bf16": product(size, "bfloat16")}
        runs |= launches(works, OneDnnAccelerator(threads))
    taken_s = least_s(runs, HostClock(), rounds)
    taken_s["fp32"] = min(taken_s["numpy"], taken_s.get("fp32", taken_s["numpy"]))
    return {
        "device_name": machine.cpu_name(),
        "flops_s": {name: work.flops / taken_s[name] for name, work in works.items()},
        "bandwidth_bytes_s": source.nbytes * max(count / taken_s[name] for name, count in passes.items()),
        "says": f"a matrix product and passes over memory by {threads} thread{'s' if threads > 1 else ''}, measured",
    }
