"""Devices by selector and by figures, over all kinds."""

from tcbench.core.errors import SelectionError
from tcbench.core.record import Cell
from tcbench.engine.api import Device, DeviceKind, device_kinds, kind_of
from tcbench.hardware.gpus import GpuFile


def device_selectors() -> tuple[str, ...]:
    """Return everything that `--device` accepts on this machine."""
    return ("auto", *(device.name for kind in device_kinds().values() for device in kind.devices()))


def runs_on_host(cell: Cell) -> bool:
    """Return whether a single rank computes the cell on the host's processor."""
    return kind_of(cell.device).is_host and cell.ranks == 1


def absent_device(figures: GpuFile) -> tuple[DeviceKind, Device]:
    """Return the kind of device that forecasts a GPU that is not in this machine, and the device. `figures` is the
    GPU's property file. Raises SelectionError if no kind can forecast it."""
    for kind in device_kinds().values():
        device = kind.absent(figures)
        if device is not None:
            return kind, device
    raise SelectionError(f"GPU {figures.name}: no kind of device forecasts it")
