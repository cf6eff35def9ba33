"""Upper limits of the FLOP/s and bytes/s of a device, which no true result exceeds."""

import math
import statistics

from tcbench.core.record import Cell, Measurement
from tcbench.engine.accelerators.device import kind_of
from tcbench.engine.accelerators.peaks import peak_rates
from tcbench.hardware import gpus, machine

_HIGHEST_CLOCK_HZ = 6.5e9
"""A clock that no processor reaches: the fastest has 6.2 GHz. Linux does not always report a processor's highest."""
_WINOGRAD = 4
"""The factor by which Winograd's algorithm F(4x4, 3x3) reduces the multiplications of a convolution."""


def rate_problem(cell: Cell, measured: Measurement, device_name: str, precision: str | None) -> str:
    """Return why a trial's rate of FLOPs or bytes is impossible on its device, or "".

    Without a declared precision, the highest rate of any format counts. GPUs without a property file and simulated
    devices are not checked. A network's forward and backward pass take three products of the same size."""
    step_s, works = statistics.fmean(measured.counted_times_s), measured.declared or ()
    declared = [work for work in works if not work.phase] or works
    cause = "overstated `flops` or `bytes`" if works else "smaller batch than declared"
    flops = 6 * measured.macs_per_image * cell.batch_size / _WINOGRAD + sum(work.flops for work in declared)
    rates = flops / step_s, sum(work.bytes for work in declared) / step_s
    for rate, limit, unit in zip(
        rates, _limits(cell.device, device_name, precision), ("FLOP/s", "bytes/s"), strict=True
    ):
        if rate > limit:
            return f"{cause}: {rate:.3g} {unit} are above the peak of this device, at most {limit:.3g}"
    return ""


def _limits(device: str, device_name: str, precision: str | None) -> tuple[float, float]:
    """Return the most FLOP/s and bytes/s of a device, infinite if they are unknown.

    A core has two vector units with fused multiply-add, and AMX's tiles for 16 bits and less (Intel 64 and IA-32
    Architectures Optimization Reference Manual). Bytes come from the first cache: 192 per clock and core (two loads and
    a store of 64), 128 per clock and multiprocessor since Volta."""
    if kind_of(device).is_host:
        clocks_s = _HIGHEST_CLOCK_HZ * (math.ceil(machine.cpu_quota()) or machine.usable_cpus())
        flags = machine.cpu_flags()
        fp32 = 32 if "avx" in flags and "avx512f" not in flags else 64
        narrow = 2048 if "amx_tile" in flags else 4 * fp32
        return clocks_s * {"float64": fp32 // 2, "float32": fp32}.get(precision or "", narrow), clocks_s * 192
    card = next((card for card in map(gpus.load, gpus.NAMES) if card.device_name == device_name), None)
    if card is None or kind_of(device).simulates:
        return math.inf, math.inf
    peak = peak_rates(card).peak_flops_s
    highest = {"float8": 2, None: 4}.get(precision, 1) * peak("fp16")
    flops_s = {"float64": peak("fp32"), "float32": peak("tf32")}.get(precision or "", highest)
    return flops_s, 128 * card.multiprocessors * card.sm_clock_hz
