"""Ceilings of a GPU: cuDNN's matrix product in each precision, and a copy within device memory."""

from typing import Any

import numpy as np

from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.ceilings import COPY_BYTES, SIZE, launches, least_s, products
from tcbench.engine.accelerators.cuda.live import CudaAccelerator
from tcbench.engine.session import Clock

ROUNDS = 15


def measure(index: int) -> dict[str, Any]:
    """Measure the ceilings of the GPU that CUDA calls `index`. Imports CuPy."""
    accelerator = CudaAccelerator(index, CudnnSettings())
    with accelerator.enter():
        return measure_on(accelerator, accelerator.clock)


def measure_on(
    accelerator: CudaAccelerator, clock: Clock, size: int = SIZE, n_bytes: int = COPY_BYTES, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Measure the ceilings on an open accelerator.

    `size`: rows and columns of the matrices. `n_bytes`: the size of the copy, which is of random values."""
    works = products(accelerator.properties.sm, size)
    source = accelerator.upload(np.random.default_rng(0).integers(0, 256, n_bytes, np.uint8))
    target = accelerator.empty((n_bytes,), "uint8")
    runs = launches(works, accelerator) | {"copy": lambda: accelerator.copy(source, target)}
    times_s = least_s(runs, clock, rounds)
    return {
        "device_name": accelerator.properties.name,
        "flops_s": {name: work.flops / times_s[name] for name, work in works.items()},
        "bandwidth_bytes_s": 2 * n_bytes / times_s["copy"],
        "says": "measured: cuDNN's matrix products and a copy in GPU memory",
    }
