"""Peak rates of GPUs from published figures. Forecasts and simulated GPUs are based on them."""

from dataclasses import dataclass

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators.ceilings import Ceilings
from tcbench.hardware.gpus import GpuFile


@dataclass(frozen=True)
class _PerClock:
    """Floating-point operations per clock and multiprocessor by precision; fp16 sums in fp32. `source` names NVIDIA's
    publication."""

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
"""Operations per clock by compute capability, as one number: 90 for 9.0."""


_HOPPER_CLOCK = (1.83e9, "989.4 TFLOP/s in fp16 with 132 SMs: Tensor Cores at 1.83 GHz")
_TENSOR_CLOCK_HZ = {
    "NVIDIA H200": _HOPPER_CLOCK,
    "NVIDIA H100 80GB HBM3": _HOPPER_CLOCK,
    "NVIDIA B200": (1.856e9, "data sheet: 2.25 PFLOP/s in fp16 with 148 SMs, Tensor Cores at 1.856 GHz"),
}
"""Clocks of published Tensor Core rates that are below the GPU's highest clock, by the driver's name of the GPU.

The text is the derivation. H200's data sheet repeats H100's rates."""


def peak_rates(gpu: GpuFile) -> Ceilings:
    """Return a GPU's peak rates for dense data.

    Tensor Cores are taken to run at their published clock if there is one, everything else at the highest clock. A GPU
    without TF32 has the rate of float32. The result's `says` names NVIDIA's publications. Raises SelectionError if the
    rates are unknown."""
    per_clock = _PER_CLOCK.get(gpu.sm)
    if per_clock is None:
        capabilities = ", ".join(f"{sm // 10}.{sm % 10}" for sm in _PER_CLOCK)
        raise SelectionError(
            f"GPU {gpu.name}: the peak rates of compute capability {gpu.sm // 10}.{gpu.sm % 10} are not known; "
            f"expected one of {capabilities}"
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
