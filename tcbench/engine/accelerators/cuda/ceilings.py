"""A GPU's ceilings: a matrix product by cuDNN in each precision, and a copy within its memory, on one stream between
events."""

from typing import Any

import numpy as np

from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.ceilings import COPY_BYTES, SIZE, launches, least_s, products
from tcbench.engine.accelerators.cuda.live import CudaAccelerator
from tcbench.engine.session import Clock

ROUNDS = 15


def measure(index: int) -> dict[str, Any]:
    """On a GPU that is here. Imports CuPy."""
    accelerator = CudaAccelerator(index, CudnnSettings())
    with accelerator.enter():
        return measure_on(accelerator, accelerator.clock)


def measure_on(
    accelerator: CudaAccelerator, clock: Clock, size: int = SIZE, n_bytes: int = COPY_BYTES, rounds: int = ROUNDS
) -> dict[str, Any]:
    """The copy, too, is of random values."""
    works = products(accelerator.properties.sm, size)
    source = accelerator.upload(np.random.default_rng(0).integers(0, 256, n_bytes, np.uint8))
    target = accelerator.empty((n_bytes,), "uint8")
    runs = launches(works, accelerator) | {"copy": lambda: accelerator.copy(source, target)}
    taken_s = least_s(runs, clock, rounds)
    return {
        "device_name": accelerator.properties.name,
        "flops_s": {name: work.flops / taken_s[name] for name, work in works.items()},
        "bandwidth_bytes_s": 2 * n_bytes / taken_s["copy"],
        "says": "a matrix product by cuDNN and a copy in its memory, measured",
    }
