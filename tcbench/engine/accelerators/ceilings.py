"""The most that a device can do: the rates of arithmetic, in each precision, and of memory. How they are measured, by a
matrix product and a copy, and those that were, in the user's cache.

A piece of work that needs F floating-point operations and must move B bytes runs at no more than min(peak, F / B *
bandwidth): S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", CACM 52(4), 2009. F / B is its arithmetic intensity, in FLOP per byte.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

import msgspec

from tcbench.core import cache, files
from tcbench.core.record import BUSY
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.session import Clock
from tcbench.engine.work import HALVES, Conv2d, ConvFprop, DType, Math, Operand, Work
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


Precision = Literal["fp32", "tf32", "fp16"]
"""Arithmetic of convolutions: in float32, in TensorFloat-32, or on 16 bits of either kind with float32 sums."""


class Reached(msgspec.Struct, frozen=True):
    """A rate at which a part of a step ran, FLOP/s or bytes/s, and which part of which cell `by`."""

    rate: float
    by: str


class Ceilings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of a device. `flops_s`: floating-point operations per second (a multiply-accumulate is two) by
    precision; `says`: where they come from, for people. `measured`: by the process that measures, which prints them so,
    as the cache keeps them. `reached`: what ran faster than these, by precision or `MEMORY`; that is the ceiling then,
    as is the best of what was measured. `lost`: the share of the processor time that others had meanwhile."""

    MEMORY: ClassVar = "memory"
    """The name of the bandwidth in `reached`."""

    device_name: str
    flops_s: dict[str, float]
    bandwidth_bytes_s: float
    says: str
    measured: bool = True
    reached: dict[str, Reached] = {}
    lost: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether they were measured on a busy machine, and so are too low."""
        return self.lost >= BUSY

    @classmethod
    def load(cls, machine_name: str) -> "Ceilings | None":
        """Return the ceilings in the cache for a machine; None without any, or if they cannot be read."""
        return _read(_file(machine_name))

    def store(self, machine_name: str) -> "Ceilings":
        """Store the best of these and the cached ceilings of a machine, and return it. Raises StoreError."""
        before = Ceilings.load(machine_name)
        best = self if before is None else self.best(before)
        files.write(_file(machine_name), msgspec.json.encode(best))
        return best

    def __hash__(self) -> int:
        return hash((self.device_name, self.bandwidth_bytes_s, self.says))

    def at(self, precision: str) -> float:
        """FLOP/s. bf16 that is not there computes as fp16 does, others as fp32."""
        known = self.flops_s.get(precision) or (self.flops_s.get("fp16") if precision == "bf16" else None)
        return self._or_reached(precision, known or self.flops_s["fp32"])

    @property
    def memory_bytes_s(self) -> float:
        return self._or_reached(self.MEMORY, self.bandwidth_bytes_s)

    def _or_reached(self, name: str, rate: float) -> float:
        return max(rate, self.reached[name].rate) if name in self.reached else rate

    def precision(self, work: Work) -> Precision:
        """The arithmetic of a piece of work: float32 for all but convolutions, whatever they store; and of a GPU
        without TF32."""
        conv = getattr(work, "conv", None)
        if conv is None:
            return "fp32"
        if conv.dtype in HALVES:
            return "fp16"
        return "tf32" if conv.math == "tf32" and self.at("tf32") > self.at("fp32") else "fp32"

    def least_s(self, flops: float, n_bytes: float, precision: str) -> float:
        """The roofline's bound."""
        return max(flops / self.at(precision), n_bytes / self.memory_bytes_s)

    def floor_s(self, work: Work) -> float:
        """The same for one launch."""
        return self.least_s(work.flops, work.bytes, self.precision(work))

    def ridge(self, precision: str) -> float:
        """The intensity from which on arithmetic is the ceiling."""
        return self.at(precision) / self.memory_bytes_s

    def attainable_flops_s(self, intensity: float, precision: str) -> float:
        return min(self.at(precision), intensity * self.memory_bytes_s)

    def raised(self, reached: Mapping[str, Reached]) -> Self:
        """With what ran faster than these."""
        ceilings = {name: self.memory_bytes_s if name == self.MEMORY else self.at(name) for name in reached}
        faster = {name: one for name, one in reached.items() if one.rate > ceilings[name]}
        return msgspec.structs.replace(self, reached=self.reached | faster) if faster else self

    def best(self, other: Self) -> Self:
        """The higher of each two rates: whatever else a machine does at the time can only lower them."""
        rates = {name: max(m.flops_s.get(name, 0.0) for m in (self, other)) for name in self.flops_s | other.flops_s}
        bandwidth = max(self.bandwidth_bytes_s, other.bandwidth_bytes_s)
        best = msgspec.structs.replace(self, flops_s=rates, bandwidth_bytes_s=bandwidth, reached={})
        return best.raised(self.reached).raised(other.reached)


def _file(machine_name: str) -> Path:
    return cache.folder(VERSION) / f"{machine.slug(machine_name)}.json"


def _read(path: Path) -> Ceilings | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ceilings)
    except (OSError, ValueError):
        return None


def of_device(device_name: str) -> Ceilings | None:
    """Return the ceilings of a device by its driver's name, from whichever machine measured them: the last file's."""
    ceilings = (_read(path) for path in sorted(cache.folder(VERSION).glob("*.json"), reverse=True))
    return next((measured for measured in ceilings if measured and measured.device_name == device_name), None)
