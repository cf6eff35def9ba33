"""Ceilings of a device: its highest rates of arithmetic, by precision, and of memory.

They are measured by a matrix product and a copy, and stored in the user's cache. Work that needs F floating-point
operations and must move B bytes runs at no more than min(peak, F / B * bandwidth). F / B is its arithmetic intensity,
in FLOP per byte. Source: S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", CACM 52(4), 2009."""

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
"""The format of stored ceilings; their folder's name."""

SIZE = 4096
"""The size of the matrices that a GPU multiplies to be measured: 2 SIZE^3 FLOP."""
COPY_BYTES = 1 << 30
"""The bytes that a GPU copies to be measured: it reads as many and writes as many."""


def product(size: int, dtype: DType, math: Math = "strict") -> ConvFprop:
    """Return a product of two size x size matrices (2 size^3 FLOP) as a 1x1 convolution. It runs by the plans that
    training uses, so that training could reach the ceiling."""
    return ConvFprop(Conv2d(size // 64, size, 8, 8, size, 1, 1, 1, 0, "NHWC", dtype, math))


def products(sm: int, size: int = SIZE) -> dict[str, ConvFprop]:
    """Return the products that measure a GPU of compute capability `sm` (90 for 9.0), by precision."""
    works = {"fp32": product(size, "float32"), "fp16": product(size, "float16")}
    return works | ({"tf32": product(size, "float32", "tf32")} if sm >= 80 else {})


def launches(works: Mapping[str, Work], accelerator: Accelerator) -> dict[str, Callable[[], None]]:
    """Return, by the names in `works`, functions that launch these operations on arrays of random values.

    Values are not zero because zeros take less power, which raises the clock above that of training."""
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
    """Return the least seconds that each function took, by its name, over `rounds` rounds in which they alternate.

    The minimum counts because other work on the device can only lower a rate. Runs alternate so that a drift of the
    device's speed affects all of them. A first round builds plans and warms up, and does not count."""
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
"""The arithmetic of a convolution: float32, TensorFloat-32, or float16 or bfloat16 with sums in float32."""


class Reached(msgspec.Struct, frozen=True):
    """A rate that a part of a step reached, in FLOP/s or bytes/s. `part` names the part and its cell."""

    rate: float
    part: str = msgspec.field(name="by")


class Ceilings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The highest rates of a device.

    - `flops_s`: floating-point operations per second by precision; a multiply-accumulate counts as two.
    - `says`: where the rates come from, as text for users.
    - `measured`: False for published figures.
    - `reached`: higher rates that parts of steps reached, by precision or `MEMORY`. They are used as the ceilings.
    - `lost`: the share of CPU time that other processes had during the measurement."""

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
        """Whether the machine was busy during the measurement, so that the rates are too low."""
        return self.lost >= BUSY

    @classmethod
    def load(cls, machine_name: str) -> "Ceilings | None":
        """Return the ceilings of a machine from the cache; None if there are none, or if they cannot be read."""
        return _read(_file(machine_name))

    def store(self, machine_name: str) -> "Ceilings":
        """Store the `best` of these ceilings and the machine's cached ones, and return it. Raises StoreError."""
        before = Ceilings.load(machine_name)
        best = self if before is None else self.best(before)
        files.write(_file(machine_name), msgspec.json.encode(best))
        return best

    def __hash__(self) -> int:
        return hash((self.device_name, self.bandwidth_bytes_s, self.says))

    def peak_flops_s(self, precision: str) -> float:
        """Return the ceiling of arithmetic in FLOP/s. Without a rate for bf16, fp16's is used; else fp32's."""
        rate = self.flops_s.get(precision) or (self.flops_s.get("fp16") if precision == "bf16" else None)
        return self._or_reached(precision, rate or self.flops_s["fp32"])

    @property
    def memory_bytes_s(self) -> float:
        """The ceiling of memory bandwidth in bytes/s."""
        return self._or_reached(self.MEMORY, self.bandwidth_bytes_s)

    def _or_reached(self, name: str, rate: float) -> float:
        return max(rate, self.reached[name].rate) if name in self.reached else rate

    def precision(self, work: Work) -> Precision:
        """Return an operation's arithmetic on this device: fp32 for all but convolutions, whatever dtype they store."""
        conv = getattr(work, "conv", None)
        if conv is None:
            return "fp32"
        if conv.dtype in HALVES:
            return "fp16"
        return "tf32" if conv.math == "tf32" and self.peak_flops_s("tf32") > self.peak_flops_s("fp32") else "fp32"

    def least_s(self, flops: float, n_bytes: float, precision: str) -> float:
        """Return the least seconds of work with this many operations and bytes, by the roofline."""
        return max(flops / self.peak_flops_s(precision), n_bytes / self.memory_bytes_s)

    def floor_s(self, work: Work) -> float:
        """Return the least seconds of a launch of the work, by the roofline."""
        return self.least_s(work.flops, work.bytes, self.precision(work))

    def ridge(self, precision: str) -> float:
        """Return the arithmetic intensity (FLOP/byte) above which arithmetic is the limit, not memory."""
        return self.peak_flops_s(precision) / self.memory_bytes_s

    def attainable_flops_s(self, intensity: float, precision: str) -> float:
        """Return the highest rate in FLOP/s at an arithmetic intensity (FLOP/byte)."""
        return min(self.peak_flops_s(precision), intensity * self.memory_bytes_s)

    def raised(self, reached: Mapping[str, Reached]) -> Self:
        """Return the ceilings, raised by every rate in `reached` that is above them."""
        ceilings = {name: self.memory_bytes_s if name == self.MEMORY else self.peak_flops_s(name) for name in reached}
        faster = {name: rate for name, rate in reached.items() if rate.rate > ceilings[name]}
        return msgspec.structs.replace(self, reached=self.reached | faster) if faster else self

    def best(self, other: Self) -> Self:
        """Return ceilings with the higher rate of the two in each precision and for memory. The higher rate counts
        because other work on the machine can only lower a measurement."""
        rates = {name: max(m.flops_s.get(name, 0.0) for m in (self, other)) for name in self.flops_s | other.flops_s}
        bandwidth = max(self.bandwidth_bytes_s, other.bandwidth_bytes_s)
        best = msgspec.structs.replace(self, flops_s=rates, bandwidth_bytes_s=bandwidth, reached={})
        return best.raised(self.reached).raised(other.reached)


def _file(machine_name: str) -> Path:
    return cache.folder(VERSION) / f"{machine.slug(machine_name)}.json"


def _read(path: Path) -> Ceilings | None:
    """Return the ceilings in a file, or None if there is no file that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ceilings)
    except (OSError, ValueError):
        return None


def measured_on(device_name: str) -> Ceilings | None:
    """Return the stored ceilings of a device by the driver's name for it, or None if there are none.

    If several machines have measured such a device, those of the last file in alphabetical order are returned."""
    ceilings = (_read(path) for path in sorted(cache.folder(VERSION).glob("*.json"), reverse=True))
    return next((measured for measured in ceilings if measured and measured.device_name == device_name), None)
