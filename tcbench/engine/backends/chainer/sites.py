"""Moving weights, models and batches to the device that a Chainer session computes on."""

import contextlib
from typing import Any

import numpy as np

from tcbench.core.record import Cell, CudnnSettings
from tcbench.engine.accelerators.device import OpenDevice, host_kind, kind_of
from tcbench.engine.backends import initial
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.fixed import on_accelerator


def random_state(site: OpenDevice, seed: int) -> contextlib.AbstractContextManager[np.random.RandomState]:
    """Return a context with the generator of initial weights. Nothing is drawn for a device that does not compute."""
    computes = site.accelerator.computes
    return initial.random_state(seed) if computes else contextlib.nullcontext(initial.NoRandomState())


def move_model(site: OpenDevice, model: Any) -> None:
    """Move a model's parameters, running statistics and counters to a device."""
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
    """Return a feed with the same batches on the device: `feed` itself if its batches are usable there."""
    needs_no_copy = feed.on_device or site.accelerator.shares_host_memory
    return feed if needs_no_copy else on_accelerator(feed, site.accelerator)


def processor(threads: int) -> OpenDevice:
    """Open the CPU with this number of threads."""
    kind = host_kind()
    return kind.open(kind.name, CudnnSettings(), threads)


def open_site(cell: Cell) -> OpenDevice:
    """Open the cell's device."""
    return kind_of(cell.device).open(cell.device, cell.cudnn, cell.threads, cell.host_speed)
