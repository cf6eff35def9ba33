"""Findings of `tcbench doctor` on the way to a GPU: driver, packages, and what would spoil a measurement there."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tcbench.core.finding import Finding, FindingState
from tcbench.core.record import GpuSample, GpuState, throttle_reasons
from tcbench.engine.accelerators.cuda import driver, nvml, packages
from tcbench.engine.accelerators.cuda.driver import Gpu, Gpus
from tcbench.engine.accelerators.cuda.nvml import NvmlGpu

_IDLE, _SETTING = 0x1, 0x2
"""Bits of a throttle mask that are no fault: nothing runs; a clock was set by hand."""
_HOT_C = 80
_BUSY_PERCENT = 5
_MUCH_MEMORY_BYTES = 2 * 2**30
"""More than a driver keeps for itself."""


def examine(open_gpu: Callable[[int], NvmlGpu | None] = nvml.open_gpu) -> Iterator[Finding]:
    """Look at everything; never raises. With neither a GPU nor CUDA packages there is one line to say."""
    gpus, installed = driver.gpus(), packages.installed()
    cupy = packages.cupy()
    if gpus.problem and cupy is None:
        yield Finding("note", "GPU", f"{gpus.problem}: runs use the CPU")
        return
    if gpus.problem:
        yield Finding(
            "unusable",
            "GPU",
            f"CUDA packages are installed ({cupy}), but there is {gpus.problem}: runs use the CPU",
            "install NVIDIA's driver, or in a container pass the GPU in (docker run --gpus all)",
        )
    yield from _packages(gpus, installed)
    for gpu in gpus.present:
        yield from _gpu(gpu, open_gpu)


def _packages(gpus: Gpus, installed: tuple[packages.Installed, ...]) -> Iterator[Finding]:
    extra = packages.extra_for(gpus)
    for part in packages.PARTS:
        remedy = packages.remedy(part, extra)
        those = [one for one in installed if one.part is part]
        if not those and part in (packages.CUDNN, packages.NVRTC, packages.RUNTIME) and packages.trouble(part) is None:
            yield Finding("ok", part.name, "found outside Python's packages")
        elif not those:
            names = " or ".join(name for name, _ in part.distributions)
            yield Finding("missing", part.name, f"{names} is not installed; needed on a GPU for {part.why}", remedy)
        else:
            versions, trouble = ", ".join(map(str, those)), packages.trouble(part)
            if trouble is None:
                yield Finding("ok", part.name, versions)
            else:
                state: FindingState = "unusable" if part.needed else "missing"
                said = f"{versions} is installed but does not work: {trouble}"
                yield Finding(state, part.name, said, f"{remedy} --reinstall-package {those[0].distribution}")
    if (newer := packages.newer_cupti(gpus)) is not None:
        yield Finding("note", packages.CUPTI.name, *newer)
    for misfit in packages.misfits(installed, gpus):
        yield Finding("unusable", "CUDA versions", misfit, packages.sync(extra))


def _gpu(gpu: Gpu, open_gpu: Callable[[int], NvmlGpu | None]) -> Iterator[Finding]:
    what = f"cuda:{gpu.index}"
    facts = [gpu.name, "compute capability {}.{}".format(*gpu.compute_capability), f"{gpu.multiprocessors} SMs"]
    facts.append(f"{gpu.memory_bytes / 2**30:.0f} GiB")
    if version := driver.version():
        facts.append(f"driver {version}")
    if driver_cuda := driver.gpus().driver_cuda:
        facts.append(f"CUDA up to {driver_cuda[0]}.{driver_cuda[1]}")
    yield Finding("ok", what, ", ".join(facts))
    asked = open_gpu(gpu.index)
    if asked is None:
        yield Finding(
            "note", what, "NVML cannot be asked: what would spoil a measurement is not known, and records will lack it"
        )
        return
    try:
        state, now = asked.state(), asked.sample(0.0)
        settings = _settings(state, now)
        if settings:
            yield Finding("ok", what, settings)
        for said, remedy in (*_spoilers(gpu.pci_bus_id or str(gpu.index), state, now), *_company(asked, now)):
            yield Finding("note", what, said, remedy)
    finally:
        asked.close()


def _settings(state: GpuState, now: GpuSample) -> str:
    """Its settings, in one line; what it does not say is left out."""
    said = [
        f"{name} {'on' if value else 'off'}"
        for name, value in (("ECC", state.ecc), ("MIG", state.mig), ("persistence", state.persistence))
        if value is not None
    ]
    if state.power_limit_w is not None:
        said.append(f"power limit {state.power_limit_w:.0f} W")
    if now.temperature_c is not None:
        said.append(f"{now.temperature_c} °C")
    return ", ".join(said)


_Advice = Iterator[tuple[str, str]]
"""What would spoil a measurement, and what mends it."""


def _spoilers(selector: str, state: GpuState, now: GpuSample) -> _Advice:
    """Settings and a state under which a measurement is not what this GPU can do, or not what it did yesterday.
    `selector`: its name for nvidia-smi, whose numbers are not CUDA's."""
    set_by = f"sudo nvidia-smi -i {selector}"
    yield from _clocks(set_by, state, now)
    limit, default = state.power_limit_w, state.default_power_limit_w
    if limit is not None and default is not None and limit < default:
        yield f"power is capped: {limit:.0f} W of {default:.0f} W", f"{set_by} -pl {default:.0f}"
    if state.mig:
        yield "MIG is on: this is a slice of the GPU, and its neighbours share its power and clocks", f"{set_by} -mig 0"
    if state.persistence is False:
        yield "persistence mode is off: the driver unloads between trials, which then start slowly", f"{set_by} -pm 1"
    slowed = throttle_reasons((now.throttle_mask or 0) & ~(_IDLE | _SETTING))
    if slowed:
        yield f"it is slowed down right now: {', '.join(slowed)}", "nvidia-smi -q -d PERFORMANCE"
    if now.temperature_c is not None and now.temperature_c >= _HOT_C:
        yield f"it is hot before any work: {now.temperature_c} °C", "let it cool, and check its airflow"


def _clocks(set_by: str, state: GpuState, now: GpuSample) -> _Advice:
    top, set_to = state.max_sm_clock_mhz, state.sm_clock_set_mhz
    if top is None:
        return
    # Some GPUs leave the factory with application clocks below the highest: a V100, which boosts past them.
    unset = state.default_sm_clock_mhz or top
    if set_to is not None and set_to < unset:
        yield f"the SM clock is capped: application clocks are {set_to} of {unset} MHz", f"{set_by} -rac"
    elif (now.throttle_mask or 0) & _SETTING:
        said = f"the SM clock is held by a setting (now {now.sm_clock_mhz} of {top} MHz): steady, but not its fastest"
        yield said, f"{set_by} -rgc   (to let go)"
    else:
        said = f"clocks are not locked: they float up to {top} MHz with power and temperature"
        yield said, f"{set_by} -lgc MHZ   (for steady comparisons; one it holds under load)"


def _company(gpu: NvmlGpu, now: GpuSample) -> _Advice:
    """Other processes on the GPU."""
    others = [process for process in gpu.processes() if process.pid != os.getpid()]
    for process in others:
        holds = "" if process.memory_bytes is None else f" holds {process.memory_bytes / 2**30:.1f} GiB"
        yield f"another process is on it: pid {process.pid}{_name(process.pid)}{holds}", "end it before measuring"
    used = now.memory_used_bytes
    if not others and used is not None and used > _MUCH_MEMORY_BYTES:
        said = f"{used / 2**30:.1f} GiB of its memory are in use, by a process that cannot be seen from here"
        yield said, "nvidia-smi   (on the host, outside the container)"
    if now.utilization_percent is not None and now.utilization_percent > _BUSY_PERCENT:
        yield f"it is at work right now: {now.utilization_percent}% busy", "wait until it is done"


def _name(pid: int) -> str:
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return ""
