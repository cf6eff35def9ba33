"""Sites, the places where a session computes: an accelerator on an open device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from tcbench.core.record import Cell, CudnnSettings, PlanChoice
from tcbench.engine.accelerators import protocol as accelerators
from tcbench.engine.accelerators.device import OpenDevice, host_kind, kind_of
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.fixed import on_accelerator
from tcbench.engine.world import World


class Site:
    """An accelerator on an open device."""

    def __init__(self, opened: OpenDevice) -> None:
        self.accelerator = opened.accelerator
        self.clock = opened.clock
        self._opened = opened

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Held from build to end: operations launch here."""
        with self._opened.enter(), accelerators.use(self.accelerator):
            yield

    def random(self, seed: int) -> np.random.RandomState:
        """The source of initial weights. Where nothing computes they are never looked at, and none are drawn."""
        return np.random.RandomState(seed) if self._opened.computes else _NoNumbers()

    def adopt(self, model: Any) -> None:
        """Bring a model's parameters, running statistics and counters here."""
        upload = self.accelerator.upload
        for parameter in model.params():
            parameter.array = upload(parameter.array)
        for link in model.links():
            running = getattr(link, "running", None)
            if running is not None:
                running.mean, running.var = upload(running.mean), upload(running.var)
            if getattr(link, "counter", None) is not None:
                link.counter = upload(link.counter)

    def deliver(self, feed: Feed) -> Feed:
        """The same feed, its batches delivered here."""
        accelerator = self.accelerator
        return feed if feed.on_device or accelerator.shares_host_memory else on_accelerator(feed, accelerator)

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        """Bytes, and of what."""
        return self._opened.peak_bytes(), self._opened.memory_of

    def value(self, array: Any) -> float | None:
        """The one number in an array, once it is there; None where nothing computes."""
        number = float(self.accelerator.download(array))
        return number if self._opened.computes else None

    def busy_s(self) -> float | None:
        """The time that the device has worked so far, where it tells."""
        return None if self._opened.busy_s is None else self._opened.busy_s()

    def reducer(self, world: World) -> accelerators.Reducer:
        """An engine that sums arrays of this place over ranks."""
        assert self._opened.reducer is not None, "a kind of device without an engine has no ranks"
        return self._opened.reducer(world)

    def plans(self) -> tuple[PlanChoice, ...]:
        """The plans that cuDNN chose here."""
        return self._opened.plans()


class _NoNumbers(np.random.RandomState):
    def standard_normal(self, size: Any = None) -> Any:
        return np.broadcast_to(np.float32(0), size)


def processor(threads: int) -> Site:
    """The processor, on so many threads."""
    kind = host_kind()
    return Site(kind.open(kind.name, CudnnSettings(), threads))


def open_site(cell: Cell) -> Site:
    """The site that a cell's device names."""
    return Site(kind_of(cell.device).open(cell.device, cell.cudnn, cell.threads, cell.host_speed))
