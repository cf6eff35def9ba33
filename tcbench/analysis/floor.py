"""The best that arithmetic and memory traffic allow: the floor of a step's time, and whether a step fits a card.

Pure functions of what a step asks for and of what a GPU is. Knows nothing of cuDNN, of traces or of consoles.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tcbench.engine.accelerators.peaks import ALLOWANCE_BYTES, peak_rates, work_floor_s
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuFile


@dataclass(frozen=True)
class Floor:
    """The least time of a whole step. `time_s` is the sum of the bounds of all launches; `arithmetic_s` is the part of
    it in launches that arithmetic bounds, the rest waits for memory.

    It is no prediction. Each launch is counted as doing its sums directly and its traffic with device memory once, so
    that only data still in the L2 cache, or a convolution by Winograd's method, can be faster.
    """

    flops: int
    bytes: int
    time_s: float
    arithmetic_s: float

    def images_per_s(self, batch_size: int) -> float:
        return batch_size / self.time_s


def step_floor(works: Iterable[tuple[Work, int]], gpu: GpuFile) -> Floor:
    """The floor of a step that launches each work so many times. Raises SelectionError as `peak_rates` does."""
    rates, bandwidth = peak_rates(gpu), gpu.memory_bandwidth_bytes_s
    flops = n_bytes = 0
    time_s = arithmetic_s = 0.0
    for work, count in works:
        flops += count * work.flops
        n_bytes += count * work.bytes
        bound_s = count * work_floor_s(work, rates, bandwidth)
        time_s += bound_s
        if work.flops / rates.of(work) > work.bytes / bandwidth:
            arithmetic_s += bound_s
    return Floor(flops, n_bytes, time_s, arithmetic_s)


@dataclass(frozen=True)
class MemoryNeed:
    """A step's need of a card's memory, in bytes: its arrays at their peak (weights and velocities among them),
    cuDNN's largest workspace, and the allowance for context and libraries."""

    arrays_bytes: int
    workspace_bytes: int
    card_bytes: int
    allowance_bytes: int = ALLOWANCE_BYTES

    @property
    def total_bytes(self) -> int:
        return self.arrays_bytes + self.workspace_bytes + self.allowance_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.card_bytes
