"""The host's ceilings: a matrix product in each dtype by NumPy's BLAS and by oneDNN, and passes over memory by all
threads."""

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
    """Products of two size x size matrices (2 size^3 FLOP), in float32 and, where oneDNN loads, in 16 bits; and by all
    threads a copy of `n_bytes` and a scaling of them in place, each byte read once and written once. The faster of
    these two is the bandwidth: processors that fetch a line before they overwrite it move a third more for a copy than
    STREAM counts."""
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

    products = _products(threads, size)
    product_s, copy_s, scale_s, *others_s = interleaved(
        (
            lambda: np.matmul(a, b, out=c),
            lambda: by_threads(lambda s: np.copyto(target[s], source[s])),
            lambda: by_threads(lambda s: np.multiply(target[s], np.float32(1), out=target[s])),
            *products.values(),
        ),
        rounds,
    )
    taken_s = dict(zip(products, others_s, strict=True))
    taken_s["fp32"] = min(product_s, taken_s.get("fp32", product_s))
    return {
        "device_name": machine.cpu_name(),
        "flops_s": {name: 2 * size**3 / seconds for name, seconds in taken_s.items()},
        "bandwidth_bytes_s": 2 * source.nbytes / min(copy_s, scale_s),
        "says": f"a matrix product and passes over memory by {threads} thread{'s' if threads > 1 else ''}, measured",
    }


def _products(threads: int, size: int) -> dict[str, Callable[[], object]]:
    """The product as a 1x1 convolution by oneDNN, as training asks for it; none where that does not load."""
    import numpy as np

    from tcbench.engine.accelerators.cpu.onednn import library
    from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
    from tcbench.engine.work import Conv2d, ConvFprop, DType

    if library.problem():
        return {}
    accelerator, random = OneDnnAccelerator(threads), np.random.default_rng(0)

    def product(dtype: DType) -> Callable[[], object]:
        work = ConvFprop(Conv2d(size // 64, size, 8, 8, size, 1, 1, 1, 0, "NHWC", dtype))
        arrays = [accelerator.empty(operand.shape, operand.dtype) for operand in work.operands]
        for array, operand in zip(arrays, work.operands, strict=True):
            if operand.role != "out":
                array[...] = random.standard_normal(operand.shape, np.float32).astype(array.dtype)
        return lambda: accelerator.launch(work, *arrays)

    return {"fp32": product("float32"), "fp16": product("float16"), "bf16": product("bfloat16")}


def interleaved(runs: tuple[Callable[[], Any], ...], rounds: int) -> list[float]:
    """Least seconds of each, one round of all after the other; a first round warms up and is not counted."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, seen in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            seen.append(time.perf_counter() - begin)
    return [min(seen[1:]) for seen in times]
