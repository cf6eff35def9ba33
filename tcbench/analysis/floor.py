"""The best that arithmetic and memory traffic allow: the floor of a step's time, and whether a step fits a card.

Pure functions of what a step asks for and of what a GPU is. Knows nothing of cuDNN, of traces or of consoles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tcbench.core.errors import SelectionError
from tcbench.hardware.gpus import GpuFile
from tcbench.work import HALVES, Work

ALLOWANCE_BYTES = 500 * 2**20
"""Held by a process on a GPU beside its arrays: the CUDA context (300 to 500 MiB on data-centre GPUs) and the
kernels of cuDNN and ours, loaded as they are first used. An estimate: it grows with the driver, the number of
multiprocessors and the kernels that are used."""


@dataclass(frozen=True)
class PeakRates:
    """The most floating-point operations per second (a multiply-accumulate is two) by how a convolution computes:
    float32, TensorFloat-32, or 16 bits of either kind accumulated in float32, dense. A GPU without TF32 computes in
    float32."""

    fp32_flops_s: float
    tf32_flops_s: float
    fp16_flops_s: float

    def of(self, work: Work) -> float:
        """The rate of a piece of work. All but convolutions compute in float32, whatever they store."""
        conv = getattr(work, "conv", None)
        if conv is None:
            return self.fp32_flops_s
        if conv.dtype in HALVES:
            return self.fp16_flops_s
        return self.tf32_flops_s if conv.math == "tf32" else self.fp32_flops_s


_PER_CLOCK: dict[int, tuple[int, int, int]] = {
    70: (128, 128, 1024),
    75: (128, 128, 1024),
    80: (128, 1024, 2048),
    86: (256, 512, 1024),
    89: (256, 512, 1024),
    90: (256, 2048, 4096),
    100: (256, 4096, 8192),
    103: (256, 4096, 8192),
    120: (256, 512, 1024),
}
"""Floating-point operations per clock and multiprocessor by compute capability: fp32, TF32, fp16 with fp32 sums.

Sources, all by NVIDIA: "Tesla V100 GPU Architecture" (2017), 64 FP32 cores and 8 Tensor Cores of 64 FMA per SM;
"Turing GPU Architecture" (2018); "A100 Tensor Core GPU Architecture" (2020), 64 FP32 cores and 4 Tensor Cores of 256
FMA; "GA102 GPU Architecture" (2021) and "Ada GPU Architecture" (2023), 128 FP32 cores and 4 Tensor Cores of 128 FMA;
"H100 Tensor Core GPU Architecture" (2022), 128 FP32 cores and 4 Tensor Cores of 512 FMA; "Blackwell Architecture
Technical Brief" (2024), which doubles the Tensor Cores' rate; "RTX Blackwell PRO GPU Architecture" (2025)."""


_TENSOR_CLOCK_HZ = {"NVIDIA H200": 1.83e9, "NVIDIA H100 80GB HBM3": 1.83e9, "NVIDIA B200": 1.856e9}
"""The clock of a GPU's published Tensor Core rates, by its driver's name for it, where that is below its highest clock.
Sources: "H100 Tensor Core GPU Architecture" (2022), 989.4 TFLOP/s in fp16 with 132 multiprocessors, and H200's data
sheet, the same; B200's, 2.25 PFLOP/s with 148."""


def peak_rates(gpu: GpuFile) -> PeakRates:
    """Rates at the GPU's highest clock, those of its Tensor Cores at theirs. Raises SelectionError for a compute
    capability that is not known."""
    per_clock = _PER_CLOCK.get(gpu.sm)
    if per_clock is None:
        known = ", ".join(f"{sm // 10}.{sm % 10}" for sm in _PER_CLOCK)
        raise SelectionError(
            f"GPU {gpu.name}: the peak rates of compute capability {gpu.sm // 10}.{gpu.sm % 10} are not known; "
            f"expected one of {known}"
        )
    fp32, tf32, fp16 = per_clock
    clock_hz = gpu.sm_clock_hz
    tensor_hz = min(clock_hz, _TENSOR_CLOCK_HZ.get(gpu.device_name, clock_hz))
    tf32_hz = tensor_hz if tf32 > fp32 else clock_hz
    n = gpu.multiprocessors
    return PeakRates(fp32 * n * clock_hz, tf32 * n * tf32_hz, fp16 * n * tensor_hz)


def work_floor_s(work: Work, rates: PeakRates, bandwidth_bytes_s: float) -> float:
    """The roofline's bound for one launch: S. Williams et al., "Roofline", CACM 52(4), 2009."""
    return max(work.flops / rates.of(work), work.bytes / bandwidth_bytes_s)


@dataclass(frozen=True)
class Floor:
    """A whole step's. `time_s` is the sum over all launches of each one's bound; `arithmetic_s` is the part of it in
    launches that arithmetic bounds, the rest waits for memory.

    No prediction. Each launch is counted as doing its sums directly and its traffic with device memory once, so only
    data that is still in the L2 cache, or a convolution by Winograd's method, can be faster.
    """

    flops: int
    bytes: int
    time_s: float
    arithmetic_s: float

    def images_per_s(self, batch_size: int) -> float:
        """The most that the floor allows."""
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
