"""The findings of `tcbench doctor` about GPUs: driver, CUDA packages, and anything that disturbs measurements."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tcbench.core.finding import Finding
from tcbench.core.record import GpuSample, GpuState, throttle_reasons
from tcbench.engine.accelerators.cuda import driver, nvml, packages
from tcbench.engine.accelerators.cuda.driver import Gpu, Gpus
from tcbench.engine.accelerators.cuda.nvml import NvmlGpu

_IDLE, _SETTING = 0x1, 0x2
"""Bits of NVML's throttle mask that are no fault: the GPU is idle; a clock was set by hand."""
_HOT_C = 80
_BUSY_PERCENT = 5
_MUCH_MEMORY_BYTES = 2 * 2**30
"""Memory in use above this is another process's: the driver itself needs less."""


def examine(open_gpu: Callable[[int], NvmlGpu | None] = nvml.open_gpu) -> Iterator[Finding]:
    """Yield the findings about packages and GPUs. Never raises. Without a GPU and without CUDA packages there is a
    single finding: runs use the CPU."""
    gpus, installed, cupy = driver.gpus(), packages.installed(), packages.cupy()
    if gpus.problem and cupy is None:
        yield Finding("note", "GPU", f"{gpus.problem}: runs use the CPU")
        return
    if gpus.problem:
        yield Finding(
            "unusable",
            "GPU",
            f"CUDA packages are installed ({cupy}), but there is {gpus.problem}: runs use the CPU",
            "install NVIDIA's driver; in a container, pass the GPU through (docker run --gpus all)",
        )
    yield from _packages(gpus, installed)
    for gpu in gpus.present:
        yield from _gpu(gpu, open_gpu)


def _packages(gpus: Gpus, installed: tuple[packages.Installed, ...]) -> Iterator[Finding]:
    """Yield a finding for each part of CUDA: installed and working, installed but broken, or missing."""
    extra = packages.extra_for(gpus)
    for part in packages.PARTS:
        remedy, trouble = packages.remedy(part, extra), packages.trouble(part)
        wheels = [package for package in installed if package.part is part]
        versions = ", ".join(map(str, wheels))
        if trouble is None and (wheels or part in (packages.CUDNN, packages.NVRTC, packages.RUNTIME)):
            yield Finding("ok", part.name, versions or "found outside Python's packages")
        elif wheels:
            detail = f"{versions} is installed but does not work: {trouble}"
            reinstall = f"{remedy} --reinstall-package {wheels[0].distribution}"
            yield Finding("unusable" if part.needed else "missing", part.name, detail, reinstall)
        else:
            names = " or ".join(name for name, _ in part.distributions)
            yield Finding("missing", part.name, f"{names} is not installed; needed on a GPU for {part.why}", remedy)
    if (newer := packages.newer_cupti(gpus)) is not None:
        yield Finding("note", packages.CUPTI.name, *newer)
    for misfit in packages.misfits(installed, gpus):
        yield Finding("unusable", "CUDA versions", misfit, packages.sync(extra))


def _gpu(gpu: Gpu, open_gpu: Callable[[int], NvmlGpu | None]) -> Iterator[Finding]:
    """Yield the findings on one GPU: its facts, its settings, and what else uses it."""
    subject = f"cuda:{gpu.index}"
    facts = [gpu.name, "compute capability {}.{}".format(*gpu.compute_capability), f"{gpu.multiprocessors} SMs"]
    facts.append(f"{gpu.memory_bytes / 2**30:.0f} GiB")
    if version := driver.version():
        facts.append(f"driver {version}")
    if driver_cuda := driver.gpus().driver_cuda:
        facts.append(f"CUDA up to {driver_cuda[0]}.{driver_cuda[1]}")
    yield Finding("ok", subject, ", ".join(facts))
    opened = open_gpu(gpu.index)
    if opened is None:
        detail = (
            "NVML is not available: settings that disturb measurements cannot be checked, and records will lack "
            "clocks, power and temperature"
        )
        yield Finding("note", subject, detail)
        return
    try:
        state, now = opened.state(), opened.sample(0.0)
        if settings := _settings(state, now):
            yield Finding("ok", subject, settings)
        disturbances = (*_disturbances(gpu.pci_bus_id or str(gpu.index), state, now), *_other_processes(opened, now))
        for detail, remedy in disturbances:
            yield Finding("note", subject, detail, remedy)
    finally:
        opened.close()


def _settings(state: GpuState, now: GpuSample) -> str:
    """Return the GPU's settings in one line, without those that NVML does not report."""
    settings = [
        f"{name} {'on' if value else 'off'}"
        for name, value in (("ECC", state.ecc), ("MIG", state.mig), ("persistence", state.persistence))
        if value is not None
    ]
    if state.power_limit_w is not None:
        settings.append(f"power limit {state.power_limit_w:.0f} W")
    if now.temperature_c is not None:
        settings.append(f"{now.temperature_c} °C")
    return ", ".join(settings)


_Advice = Iterator[tuple[str, str]]
"""Disturbances of a measurement, each with its remedy."""


def _disturbances(selector: str, state: GpuState, now: GpuSample) -> _Advice:
    """Yield settings and conditions that slow the GPU down or make its speed vary from day to day. `selector` is the
    GPU's name for nvidia-smi, which numbers GPUs differently from CUDA."""
    set_by = f"sudo nvidia-smi -i {selector}"
    yield from _clock_disturbances(set_by, state, now)
    limit, default = state.power_limit_w, state.default_power_limit_w
    if limit is not None and default is not None and limit < default:
        yield f"power is capped: {limit:.0f} W of {default:.0f} W", f"{set_by} -pl {default:.0f}"
    if state.mig:
        yield "MIG is on: this is a slice of the GPU, and other slices share its power and clocks", f"{set_by} -mig 0"
    if state.persistence is False:
        yield "persistence mode is off: the driver unloads between trials, which slows their start", f"{set_by} -pm 1"
    slowed = throttle_reasons((now.throttle_mask or 0) & ~(_IDLE | _SETTING))
    if slowed:
        yield f"the GPU is throttled: {', '.join(slowed)}", "nvidia-smi -q -d PERFORMANCE"
    if now.temperature_c is not None and now.temperature_c >= _HOT_C:
        yield f"the GPU is hot before the measurement: {now.temperature_c} °C", "let it cool, and check its airflow"


def _clock_disturbances(set_by: str, state: GpuState, now: GpuSample) -> _Advice:
    """Yield whether the SM clock is capped, locked or free to vary; nothing if its maximum is unknown. `set_by` is the
    start of the command that sets it."""
    top, set_to = state.max_sm_clock_mhz, state.sm_clock_set_mhz
    if top is None:
        return
    # A default below the maximum is no cap: a V100 ships with such application clocks and boosts beyond them.
    default = state.default_sm_clock_mhz or top
    if set_to is not None and set_to < default:
        yield f"the SM clock is capped: application clocks are {set_to} of {default} MHz", f"{set_by} -rac"
    elif (now.throttle_mask or 0) & _SETTING:
        detail = (
            f"the SM clock is locked (now {now.sm_clock_mhz} of {top} MHz): results are steady, but not the fastest"
        )
        yield detail, f"{set_by} -rgc   (to unlock)"
    else:
        detail = f"clocks are not locked: they vary up to {top} MHz with power and temperature"
        yield detail, f"{set_by} -lgc MHZ   (choose a clock that the GPU sustains under load)"


def _other_processes(gpu: NvmlGpu, now: GpuSample) -> _Advice:
    """Yield the other processes that use the GPU, memory that invisible processes hold, and load on the GPU."""
    processes = [process for process in gpu.processes() if process.pid != os.getpid()]
    for process in processes:
        holds = "" if process.memory_bytes is None else f" holds {process.memory_bytes / 2**30:.1f} GiB"
        yield f"another process uses the GPU: pid {process.pid}{_name(process.pid)}{holds}", "end it before measuring"
    used = now.memory_used_bytes
    if not processes and used is not None and used > _MUCH_MEMORY_BYTES:
        detail = f"{used / 2**30:.1f} GiB of GPU memory are in use by a process that is not visible from here"
        yield detail, "nvidia-smi   (on the host, outside the container)"
    if now.utilization_percent is not None and now.utilization_percent > _BUSY_PERCENT:
        yield f"the GPU is busy ({now.utilization_percent}%)", "wait until it is done"


def _name(pid: int) -> str:
    """Return the name of a process after a space and in parentheses, or "" if it is unknown."""
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return ""
