"""A device's ceilings, the rates of a matrix product and a copy: how they are measured, and those that were, in the
user's cache."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import msgspec

from tcbench.core import cache, files
from tcbench.core.session import Clock
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.work import Conv2d, ConvFprop, DType, Math, Operand, Work
from tcbench.hardware import machine

VERSION = "ceilings-v2"
"""Names the form of what is kept."""

SIZE = 4096
"""Of a GPU's product: channels in and out, and pixels times images: 2 SIZE^3 FLOP."""
COPY_BYTES = 1 << 30
"""Of a GPU's copy, which reads and writes as many."""


def product(size: int, dtype: DType, math: Math = "strict") -> ConvFprop:
    """A product of two size x size matrices (2 size^3 FLOP) as a 1x1 convolution, by the plans that training uses, so
    that the ceiling is one that a rung could reach."""
    return ConvFprop(Conv2d(size // 64, size, 8, 8, size, 1, 1, 1, 0, "NHWC", dtype, math))


def products(sm: int, size: int = SIZE) -> dict[str, ConvFprop]:
    """The product by which a GPU of this compute capability is measured in each precision that it has."""
    works = {"fp32": product(size, "float32"), "fp16": product(size, "float16")}
    return works | ({"tf32": product(size, "float32", "tf32")} if sm >= 80 else {})


def launches(works: Mapping[str, Work], accelerator: Accelerator) -> dict[str, Callable[[], None]]:
    """Each work on arrays of random values: zeros take less power, and so are multiplied at a clock that training never
    sees."""
    import numpy as np

    rng = np.random.default_rng(0)

    def array(operand: Operand) -> Array:
        if operand.role == "out":
            return accelerator.empty(operand.shape, operand.dtype)
        return accelerator.upload(rng.standard_normal(operand.shape, np.float32).astype(operand.dtype))

    def launch(work: Work) -> Callable[[], None]:
        arrays = [array(operand) for operand in work.operands]
        return lambda: accelerator.launch(work, *arrays)

    return {name: launch(work) for name, work in works.items()}


def least_s(runs: Mapping[str, Callable[[], object]], clock: Clock, rounds: int) -> dict[str, float]:
    """The least seconds of each, which take turns, so that a device whose speed drifts does so for all: other work can
    only lower a rate. The first round builds plans and warms up, and is not counted."""
    for run in runs.values():
        run()
    clock.mark()
    for _ in range(rounds):
        for run in runs.values():
            run()
            clock.mark()
    times_s = clock.read()
    return {name: min(times_s[place :: len(runs)]) for place, name in enumerate(runs)}


class MeasuredCeilings(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that the measuring process prints and the cache keeps. `flops_s` is by precision."""

    device_name: str
    flops_s: dict[str, float]
    bandwidth_bytes_s: float
    says: str

    def best(self, other: Self) -> Self:
        """The higher of each two rates: whatever else a machine does at the time can only lower them."""
        rates = {name: max(m.flops_s.get(name, 0.0) for m in (self, other)) for name in self.flops_s | other.flops_s}
        bandwidth = max(self.bandwidth_bytes_s, other.bandwidth_bytes_s)
        return msgspec.structs.replace(self, flops_s=rates, bandwidth_bytes_s=bandwidth)


def path(name: str) -> Path:
    """The file of a machine's ceilings."""
    return cache.folder(VERSION) / f"{machine.slug(name)}.json"


def kept(file: Path) -> MeasuredCeilings | None:
    """None where nothing is kept, or it cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=MeasuredCeilings)
    except (OSError, ValueError):
        return None


def keep(file: Path, measured: MeasuredCeilings) -> MeasuredCeilings:
    """Keep the best that was ever measured, and give it back. Raises StoreError."""
    before = kept(file)
    best = measured if before is None else measured.best(before)
    files.write(file, msgspec.json.encode(best))
    return best


def of_device(device_name: str) -> MeasuredCeilings | None:
    """Those of a device by its driver's name for it, whichever machine measured them: the last by file name."""
    every = (kept(file) for file in sorted(cache.folder(VERSION).glob("*.json"), reverse=True))
    return next((measured for measured in every if measured and measured.device_name == device_name), None)
