"""Between Chainer and the open device that a session computes on: weights, models and batches on their way there."""

import contextlib
from typing import Any

import numpy as np

from tcbench.core.record import Cell, CudnnSettings
from tcbench.engine.accelerators.device import OpenDevice, host_kind, kind_of
from tcbench.engine.backends import initial
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.fixed import on_accelerator


def random(site: OpenDevice, seed: int) -> contextlib.AbstractContextManager[np.random.RandomState]:
    """The source of initial weights. Where nothing computes they are never looked at, and none are drawn."""
    return initial.numbers(seed) if site.accelerator.computes else contextlib.nullcontext(initial.NoNumbers())


def adopt(site: OpenDevice, model: Any) -> None:
    """Bring a model's parameters, running statistics and counters to a device."""
    take = site.accelerator.take
    for parameter in model.params():
        parameter.array = take(parameter.array)
    for link in model.links():
        running = getattr(link, "running", None)
        if running is not None:
            running.mean, running.var = take(running.mean), take(running.var)
        if getattr(link, "counter", None) is not None:
            link.counter = take(link.counter)


def deliver(site: OpenDevice, feed: Feed) -> Feed:
    """The same feed, its batches delivered on a device."""
    arrived = feed.on_device or site.accelerator.shares_host_memory
    return feed if arrived else on_accelerator(feed, site.accelerator)


def processor(threads: int) -> OpenDevice:
    """The processor, on so many threads."""
    kind = host_kind()
    return kind.open(kind.name, CudnnSettings(), threads)


def open_site(cell: Cell) -> OpenDevice:
    """The device that a cell names."""
    return kind_of(cell.device).open(cell.device, cell.cudnn, cell.threads, cell.host_speed)
