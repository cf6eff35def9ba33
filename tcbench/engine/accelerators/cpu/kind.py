"""The device kind `cpu`: operations run in this process and use host memory."""

import os
from collections.abc import Iterator
from typing import Any

from tcbench.core.finding import Finding
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cpu.heap import keep_freed_memory
from tcbench.engine.accelerators.device import Device, DeviceKind, OpenDevice
from tcbench.engine.clock import HostClock, peak_resident_bytes
from tcbench.hardware import machine

_ISA_LIMITS = {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}
"""Environment variables that limit the instruction sets that oneDNN uses."""


class Cpu(DeviceKind):
    """The host's processor as a device kind."""

    name = "cpu"
    noun = "CPU"
    is_host = True
    assumed_flops_s = 40e9
    assumed_startup_s = 1.5

    def devices(self) -> tuple[Device, ...]:
        instructions = machine.cpu_flags()
        if not _ISA_LIMITS.isdisjoint(os.environ):
            from tcbench.engine.accelerators.cpu.onednn import library

            instructions -= library.withheld()
        return (Device(self.name, machine.cpu_name(), machine.usable_memory_bytes(), instructions=instructions),)

    def machine(self, title: str) -> str:
        """Return a machine name with the number of usable cores, since a container may get only some of them."""
        return f"{machine.slug(title)}-{machine.usable_cpus()}cpu"

    def library(self) -> str:
        from tcbench.engine.accelerators.cpu.onednn import library

        version = library.version()
        return "NumPy" if version is None else f"oneDNN {version}"

    def shortfall(self) -> str | None:
        missing = _missing()
        return missing and ": ".join(filter(None, missing))

    def findings(self) -> Iterator[Finding]:
        from tcbench.engine.accelerators.cpu.onednn import library

        if missing := _missing():
            yield Finding("missing", "oneDNN", *missing)
        else:
            yield Finding("ok", "oneDNN", f"{library.version()}: used on the CPU, with NumPy for the rest")

    def open(self, device: str, settings: CudnnSettings, threads: int, host_speed: float = 1.0) -> OpenDevice:
        """Open oneDNN's accelerator if oneDNN can be used here, else NumPy's; see `DeviceKind.open`."""
        from tcbench.engine.accelerators.cpu.onednn import library
        from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
        from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator

        keep_freed_memory()
        accelerator = (NumpyAccelerator if library.problem() else OneDnnAccelerator)(threads)
        return OpenDevice(
            accelerator,
            HostClock(),
            peak_resident_bytes,
            enter=accelerator.enter,
            plans=accelerator.plans,
            memory_of="process",
            reducer=accelerator.reducer,
        )

    def ceilings(self, device: str, threads: int) -> dict[str, Any]:
        from tcbench.engine.accelerators.cpu import ceilings

        return ceilings.measure(threads)


def _missing() -> tuple[str, str] | None:
    """Return why oneDNN is not used, with its cost, and the command that fixes it; None if oneDNN is used."""
    from tcbench.engine.accelerators.cpu.onednn import library

    if (problem := library.problem()) is None:
        return None
    cause, _, remedy = problem.partition(": ")
    return f"{cause}; steps take several times as long without it", remedy


KIND = Cpu()
