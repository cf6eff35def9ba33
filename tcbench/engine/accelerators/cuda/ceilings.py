"""A GPU's ceilings: a matrix product by cuDNN in each precision, and a copy within its memory.

Launches take turns, on one stream between events; the best of each is taken, as a ceiling."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.core.record import CudnnSettings
from tcbench.core.session import Clock
from tcbench.engine.accelerators.ceilings import COPY_BYTES, SIZE, products
from tcbench.engine.accelerators.cuda.live import CudaAccelerator
from tcbench.engine.accelerators.protocol import Array
from tcbench.engine.work import Operand

ROUNDS = 15


def measure(index: int) -> dict[str, Any]:
    """On a GPU that is here. Imports CuPy."""
    accelerator = CudaAccelerator(index, CudnnSettings())
    with accelerator.enter():
        return measure_on(accelerator, accelerator.clock)


def measure_on(
    accelerator: CudaAccelerator, clock: Clock, size: int = SIZE, n_bytes: int = COPY_BYTES, rounds: int = ROUNDS
) -> dict[str, Any]:
    """The first round builds plans and warms up, and is not counted. On random values: zeros take less power, and so
    are multiplied at a clock that training never sees."""
    works = products(accelerator.properties.sm, size)
    rng = np.random.default_rng(0)

    def array(operand: Operand) -> Array:
        if operand.role == "out":
            return accelerator.empty(operand.shape, operand.dtype)
        return accelerator.upload(rng.standard_normal(operand.shape, np.float32).astype(operand.dtype))

    arrays = {name: [array(operand) for operand in work.operands] for name, work in works.items()}
    source, target = accelerator.upload(rng.integers(0, 256, n_bytes, np.uint8)), accelerator.empty((n_bytes,), "uint8")

    def launch(name: str) -> Callable[[], None]:
        return lambda: accelerator.launch(works[name], *arrays[name])

    runs: dict[str, Callable[[], None]] = {name: launch(name) for name in works}
    runs["copy"] = lambda: accelerator.copy(source, target)
    for run in runs.values():
        run()
    clock.mark()
    for _ in range(rounds):
        for run in runs.values():
            run()
            clock.mark()
    times_s = clock.read()
    least_s = {name: min(times_s[i :: len(runs)]) for i, name in enumerate(runs)}
    return {
        "device_name": accelerator.properties.name,
        "flops_s": {name: work.flops / least_s[name] for name, work in works.items()},
        "bandwidth_bytes_s": 2 * n_bytes / least_s["copy"],
        "says": "a matrix product by cuDNN and a copy in its memory, measured",
    }
