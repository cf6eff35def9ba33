"""Sites, the places where a session computes: the host, or an accelerator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np

from tcbench.accelerators import protocol as accelerators
from tcbench.accelerators.device import OpenDevice, kind_of
from tcbench.backends.feeds.base import Feed
from tcbench.backends.feeds.fixed import FixedBuffers
from tcbench.core.record import Cell, PlanChoice
from tcbench.core.session import Clock
from tcbench.hardware.clock import HostClock
from tcbench.hardware.memory import peak_resident_bytes


class Site(Protocol):
    """A place to compute."""

    @property
    def clock(self) -> Clock: ...

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Held from build to end: operations launch here."""
        ...

    def random(self, seed: int) -> np.random.RandomState:
        """The source of initial weights."""
        ...

    def adopt(self, model: Any) -> None:
        """Bring a model's parameters and running statistics here."""
        ...

    def deliver(self, feed: Feed) -> Feed:
        """The same feed, its batches delivered here."""
        ...

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        """Bytes, and of what."""
        ...

    def value(self, array: Any) -> float:
        """The one number in an array, once it is there."""
        ...

    def plans(self) -> tuple[PlanChoice, ...]:
        """The plans that cuDNN chose here."""
        ...


class Host:
    """NumPy, in this process."""

    def __init__(self) -> None:
        self.clock = HostClock()

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return accelerators.use(None)

    def random(self, seed: int) -> np.random.RandomState:
        return np.random.RandomState(seed)

    def adopt(self, model: Any) -> None:
        pass

    def deliver(self, feed: Feed) -> Feed:
        return feed

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        return peak_resident_bytes(), "process"

    def value(self, array: Any) -> float:
        return float(array)

    def plans(self) -> tuple[PlanChoice, ...]:
        return ()


class OnAccelerator:
    """An accelerator on an open device."""

    def __init__(self, opened: OpenDevice) -> None:
        self.accelerator = opened.accelerator
        self.clock = opened.clock
        self._opened = opened

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with self._opened.enter(), accelerators.use(self.accelerator):
            yield

    def random(self, seed: int) -> np.random.RandomState:
        return np.random.RandomState(seed)

    def adopt(self, model: Any) -> None:
        upload = self.accelerator.upload
        for parameter in model.params():
            parameter.array = upload(parameter.array)
        for link in model.links():
            running = getattr(link, "running", None)
            if running is not None:
                running.mean, running.var = upload(running.mean), upload(running.var)

    def deliver(self, feed: Feed) -> Feed:
        return feed if feed.on_device else FixedBuffers(feed, self.accelerator)

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        return self._opened.peak_bytes(), "device"

    def value(self, array: Any) -> float:
        return float(self.accelerator.download(array))

    def plans(self) -> tuple[PlanChoice, ...]:
        return self._opened.plans()


class TracingSite(OnAccelerator):
    """A TracingAccelerator: weights are never looked at, so none are drawn."""

    def random(self, seed: int) -> np.random.RandomState:
        return _NoNumbers()


class _NoNumbers(np.random.RandomState):
    def standard_normal(self, size: Any = None) -> Any:
        return np.broadcast_to(np.float32(0), size)


def open_site(cell: Cell) -> Site:
    """The site that a cell's device names."""
    opened = kind_of(cell.device).open(cell.device, cell.cudnn)
    return Host() if opened is None else OnAccelerator(opened)
