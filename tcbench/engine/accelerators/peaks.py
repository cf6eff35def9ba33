"""The most that a GPU can do by public figures: its peak rates, and the memory that a process holds beside its arrays.
A forecast's floors and a modelled GPU's durations come from these.
"""

from dataclasses import dataclass

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators.ceilings import Ceilings
from tcbench.hardware.gpus import GpuFile


@dataclass(frozen=True)
class _PerClock:
    """Floating-point operations per clock and multiprocessor, fp16 with fp32 sums. `source` is NVIDIA's."""

    fp32: int
    tf32: int
    fp16: int
    source: str


_BLACKWELL = _PerClock(256, 4096, 8192, "Blackwell Architecture Technical Brief (2024): Tensor Cores at twice the rate")
_PER_CLOCK: dict[int, _PerClock] = {
    70: _PerClock(128, 128, 1024, "Tesla V100 GPU Architecture (2017): 64 FP32 cores, 8 Tensor Cores of 64 FMA per SM"),
    75: _PerClock(128, 128, 1024, "Turing GPU Architecture (2018): 64 FP32 cores, 8 Tensor Cores of 64 FMA per SM"),
    80: _PerClock(
        128, 1024, 2048, "A100 Tensor Core GPU Architecture (2020): 64 FP32 cores, 4 Tensor Cores of 256 FMA per SM"
    ),
    86: _PerClock(256, 512, 1024, "GA102 GPU Architecture (2021): 128 FP32 cores, 4 Tensor Cores of 128 FMA per SM"),
    89: _PerClock(256, 512, 1024, "Ada GPU Architecture (2023): 128 FP32 cores, 4 Tensor Cores of 128 FMA per SM"),
    90: _PerClock(
        256, 2048, 4096, "H100 Tensor Core GPU Architecture (2022): 128 FP32 cores, 4 Tensor Cores of 512 FMA per SM"
    ),
    100: _BLACKWELL,
    103: _BLACKWELL,
    120: _PerClock(256, 512, 1024, "RTX Blackwell PRO GPU Architecture (2025)"),
}
"""By compute capability as one number: 90 for 9.0."""


_HOPPER_CLOCK = (1.83e9, "989.4 TFLOP/s in fp16 with 132 SMs: Tensor Cores at 1.83 GHz")
_TENSOR_CLOCK_HZ = {
    "NVIDIA H200": _HOPPER_CLOCK,
    "NVIDIA H100 80GB HBM3": _HOPPER_CLOCK,
    "NVIDIA B200": (1.856e9, "data sheet: 2.25 PFLOP/s in fp16 with 148 SMs, Tensor Cores at 1.856 GHz"),
}
"""The clock of a GPU's published Tensor Core rates, by its driver's name for it, where that is below its highest clock,
and what it follows from; H200's data sheet repeats H100's rates."""


def peak_rates(gpu: GpuFile) -> Ceilings:
    """Dense rates at the GPU's highest clock, of Tensor Cores at theirs; one without TF32 computes in float32. They say
    the publications by NVIDIA that they follow from. Raises SelectionError where they are not known."""
    per_clock = _PER_CLOCK.get(gpu.sm)
    if per_clock is None:
        known = ", ".join(f"{sm // 10}.{sm % 10}" for sm in _PER_CLOCK)
        raise SelectionError(
            f"GPU {gpu.name}: the peak rates of compute capability {gpu.sm // 10}.{gpu.sm % 10} are not known; "
            f"expected one of {known}"
        )
    clock_hz = gpu.sm_clock_hz
    published_hz, clock_source = _TENSOR_CLOCK_HZ.get(gpu.device_name, (clock_hz, None))
    tensor_hz = min(clock_hz, published_hz)
    tf32_hz = tensor_hz if per_clock.tf32 > per_clock.fp32 else clock_hz
    n = gpu.multiprocessors
    fp32, tf32, fp16 = per_clock.fp32 * n * clock_hz, per_clock.tf32 * n * tf32_hz, per_clock.fp16 * n * tensor_hz
    says = "; ".join(filter(None, (per_clock.source, clock_source)))
    by_precision = {"fp32": fp32, "tf32": tf32, "fp16": fp16}
    return Ceilings(gpu.device_name, by_precision, gpu.memory_bandwidth_bytes_s, says, measured=False)
