"""Simulated GPUs as a kind of device. The program runs on the host and waits as long as the GPU would work."""

from collections.abc import Iterator
from pathlib import Path

from tcbench.core.errors import OutOfDeviceMemory
from tcbench.core.finding import Finding
from tcbench.core.record import CudnnSettings, GpuFacts, Simulated
from tcbench.engine.accelerators.attained import timing_model
from tcbench.engine.accelerators.device import Activities, Device, DeviceKind, OpenDevice
from tcbench.engine.accelerators.peaks import peak_rates
from tcbench.hardware import gpus, machine
from tcbench.hardware.gpus import GpuFile

_TITLE = "simulated "
"""A prefix of the device's title, so that every output that names the device marks it as simulated."""


class Virtual(DeviceKind):
    """The kind of simulated GPUs: the cards of `tcbench.hardware.gpus`, or a user's file of GPU properties."""

    name = "virtual"
    noun = "virtual GPU"
    simulates = "cuda"
    assumed_flops_s = 20e12
    recorder = "simulated"

    @property
    def selector(self) -> str:
        return f"{self.name}:CARD"

    def devices(self) -> tuple[Device, ...]:
        return tuple(self.select(name) for name in gpus.NAMES)

    def select(self, number: str) -> Device:
        """Return the device for a card's name (case is ignored) or a file of GPU properties. Raises SelectionError."""
        card = gpus.load(number)
        peak_rates(card)  # raises if the card's peak rates are unknown
        name = gpus.shipped_name(number) or Path(number).expanduser().absolute()
        return Device(f"{self.name}:{name}", _TITLE + card.device_name, card.memory_bytes, card.compute_capability)

    def findings(self) -> Iterator[Finding]:
        """Yield a finding that lists the cards that come with tcbench."""
        detail = f"{', '.join(gpus.NAMES)}: --device {self.name}:{gpus.NAMES[0]} simulates one"
        yield Finding("ok", "virtual GPUs", detail)

    def machine(self, title: str) -> str:
        return f"{self.name}-{machine.slug(title.removeprefix(_TITLE))}"

    def facts(self, device: str) -> GpuFacts:
        card = _card(device)
        return GpuFacts(
            name=card.device_name,
            compute_capability=card.compute_capability,
            multiprocessors=card.multiprocessors,
            memory_bytes=card.memory_bytes,
        )

    def simulated(self, device: str, host_speed: float) -> Simulated:
        card = _card(device)
        return Simulated(
            card=card.device_name, host=machine.cpu_name(), host_speed=host_speed, attained=timing_model(card).name
        )

    def out_of_memory(self, device: str, error: Exception) -> Exception | None:
        return error if isinstance(error, OutOfDeviceMemory) else None

    def activities(self) -> Activities:
        from tcbench.engine.accelerators.virtual.activities import VirtualActivities

        return VirtualActivities()

    def recorder_problem(self) -> None:
        return None

    def open(self, device: str, settings: CudnnSettings, threads: int, host_speed: float = 1.0) -> OpenDevice:
        from tcbench.engine.accelerators.event_clock import EventClock
        from tcbench.engine.accelerators.virtual.accelerator import VirtualAccelerator
        from tcbench.engine.accelerators.virtual.stream import StreamEvent, elapsed_ms

        accelerator = VirtualAccelerator(_card(device), settings, host_speed)
        clock = EventClock(accelerator.stream, StreamEvent, elapsed_ms)
        memory, stream = accelerator.device, accelerator.stream
        return OpenDevice(
            accelerator, clock, lambda: memory.peak_bytes, accelerator.enter, busy_s=lambda: stream.busy_ns * 1e-9
        )


def _card(device: str) -> GpuFile:
    return gpus.load(device.partition(":")[2])


KIND = Virtual()
