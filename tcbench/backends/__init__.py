"""The backends by name. One brings a RungSet and builds a Session from a Cell; naming it imports no framework."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from tcbench.record import Cell
from tcbench.rung import Package, RungSet
from tcbench.session import Session

if TYPE_CHECKING:
    from tcbench.backends.cuda.accelerator import GpuProperties
    from tcbench.backends.cuda.trace import Trace

_MODULES = {"chainer": "tcbench.backends.chainer", "torch": "tcbench.backends.torch"}


class Backend(Protocol):
    """What a backend's module offers."""

    RUNGS: RungSet
    DEVICES: Mapping[str, tuple[Package, ...]]
    """Device kinds it runs on ("cpu", "cuda"), and the packages each takes beyond those that are always there."""
    PACKAGES: tuple[str, ...]
    """Distributions whose versions belong in a record."""

    def open_session(self, cell: Cell) -> Session:
        """Build everything the cell needs. Imports the framework."""
        ...

    def trace(self, cell: Cell, properties: GpuProperties) -> Trace:
        """What one step of the cell asks of a GPU that need not be there. Imports the framework."""
        ...


def names() -> tuple[str, ...]:
    """The backends there are."""
    return tuple(_MODULES)


def device_kinds() -> dict[str, Package | None]:
    """The device kinds that some backend runs on; with each the package that is missing for it here, or None."""
    found: dict[str, Package | None] = {}
    for name in names():
        for kind, packages in backend(name).DEVICES.items():
            missing = next((package for package in packages if not package.is_installed()), None)
            # One backend that has all it takes is enough; else the first one's lack is told.
            found[kind] = None if missing is None else found.get(kind, missing)
    return found


def backend(name: str) -> Backend:
    """A backend by name; KeyError for one that does not exist."""
    module: Any = importlib.import_module(_MODULES[name])
    return cast(Backend, module)
