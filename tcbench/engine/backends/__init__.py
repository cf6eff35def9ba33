"""Backends by name. A backend provides a RungSet and builds a Session from a Cell.

A name is "chainer" or "torch", a name that an installed package registers under the entry-point group
`tcbench.backends`, or `module:factory` for the user's own training step (`tcbench.engine.backends.own`). Looking up a
backend imports no framework."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from tcbench.core.errors import ScenarioError, hint
from tcbench.core.packages import Package
from tcbench.core.record import COMMAND_BACKEND, DEFAULT_BACKEND, Cell, Input, KfacSettings
from tcbench.engine.accelerators.device import Device, OpenDevice, find_device
from tcbench.engine.backends import own
from tcbench.engine.models import find_model
from tcbench.engine.models.geometry import Network
from tcbench.engine.rung import RungSet
from tcbench.engine.session import Session
from tcbench.hardware.gpus import GpuProperties

if TYPE_CHECKING:
    from tcbench.engine.accelerators.tracing import Trace
    from tcbench.engine.feeds.base import Feed
    from tcbench.engine.feeds.spec import FeedSpec

_MODULES = {DEFAULT_BACKEND: "tcbench.engine.backends.chainer", "torch": "tcbench.engine.backends.torch"}

GROUP = "tcbench.backends"
"""The entry-point group in which other packages register backends."""


class Backend(Protocol):
    """The interface of a backend's module."""

    RUNGS: RungSet
    DEVICES: Mapping[str, tuple[Package, ...]]
    """The kinds of device that it runs on, by name, with the packages that each needs in addition."""
    PACKAGES: tuple[str, ...]
    """Distributions whose versions a record stores."""

    def open_session(self, cell: Cell) -> Session:
        """Build everything that the cell needs. Imports the framework."""

    def open_on(self, cell: Cell, site: OpenDevice, make_feed: Callable[[FeedSpec], Feed] | None) -> Session:
        """Build a session on another device than the cell's, and from another feed if `make_feed` is given. Raises
        TcbenchError if the backend's programs run only on their own device."""


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends: tcbench's own, and those that installed packages register."""
    return (*_MODULES, *(name for name in _registered() if name not in _MODULES))


def builds_models(name: str) -> bool:
    """Return whether the backend is tcbench's own, which builds tcbench's models and takes its input."""
    return name in _MODULES


def model_of(cell: Cell) -> Network | None:
    """Return the model that a cell trains; None for a user's own step, or for an unknown model."""
    return find_model(cell.model, cell.variant, cell.image_size) if builds_models(cell.backend) else None


def backend_problem(name: str) -> str | None:
    """Return why there is no backend of this name, or None if there is one. Does not import a `module:factory`."""
    if ":" in name:
        return own.problem(name)
    if name in (*backend_names(), COMMAND_BACKEND):
        return None
    expected = f"expected one of {', '.join(backend_names())}, or module:factory"
    return f"unknown backend '{name}'; {hint(name, backend_names(), expected)}"


def device_for(selector: str, backends: Iterable[str] | None = None) -> Device:
    """Return the device that `--device SELECTOR` means for a scenario of these backends (default: all backends). Raises
    SelectionError where there is no such device, or none of the backends runs on it."""
    return find_device(selector, kinds_of_backends(backends))


def kinds_of_backends(backends: Iterable[str] | None = None) -> dict[str, Package | None]:
    """Return the kinds of device that any of the backends (default: all) runs on, by name.

    The value is a package that is not installed but needed for that kind of device, or None if one of the backends
    needs no more packages. Unknown backends are skipped, because the plan reports them."""
    kinds: dict[str, Package | None] = {}
    names = backend_names() if backends is None else [name for name in backends if backend_problem(name) is None]
    for name in dict.fromkeys(names):
        for kind, packages in backend(name).DEVICES.items():
            missing = next((package for package in packages if not package.is_installed()), None)
            # One backend with all its packages is enough; otherwise report what the first backend lacks.
            kinds[kind] = None if missing is None else kinds.get(kind, missing)
    return kinds


def backend(name: str) -> Backend:
    """Return a backend by name. Raises ScenarioError if it does not exist or cannot be imported."""
    if name in _MODULES:
        module: Any = importlib.import_module(_MODULES[name])
        return cast(Backend, module)
    reason = backend_problem(name)
    if reason:
        raise ScenarioError(reason)
    return cast(
        Backend,
        own.OwnStep(name) if ":" in name or name == COMMAND_BACKEND else own.RegisteredBackend(_registered()[name]),
    )


@functools.cache
def _registered() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def trace_cell(cell: Cell, properties: GpuProperties) -> Trace:
    """Trace one step of the cell on a GPU that need not be present. Imports the framework.

    The input is one synthetic batch on the device; the work of a feed is not traced. With K-FAC, the step is one that
    computes factors and inverses. Raises TcbenchError as `Backend.open_on` does."""
    from tcbench.engine.accelerators.tracing import TracingAccelerator, trace_step
    from tcbench.engine.clock import HostClock
    from tcbench.engine.feeds.synthetic import UnfilledFeed

    accelerator = TracingAccelerator(properties, cell.cudnn.fast_batch_norm)
    site = OpenDevice(accelerator, HostClock(), lambda: accelerator.memory.peak_bytes)
    train = cell.train
    if isinstance(train.kfac, KfacSettings):
        train = msgspec.structs.replace(train, kfac=msgspec.structs.replace(train.kfac, interval=1))
    traced = msgspec.structs.replace(cell, input=Input(kind="synthetic"), train=train)
    session = backend(cell.backend).open_on(traced, site, UnfilledFeed)
    try:
        return trace_step(session.phases, accelerator)
    finally:
        session.close()
