"""Chainer 7.8.1: the talk's framework. Importing this module imports neither Chainer nor NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tcbench.core.record import Cell, Input, KfacSettings, TrainSettings
from tcbench.core.session import Session
from tcbench.engine.accelerators.device import kinds
from tcbench.engine.backends.chainer.rungs import RUNGS

if TYPE_CHECKING:
    from tcbench.engine.accelerators.tracing import Trace
    from tcbench.hardware.gpus import GpuProperties

__all__ = ["DEVICES", "PACKAGES", "RUNGS", "open_session", "trace"]

DEVICES = {name: kind.packages for name, kind in kinds().items()}
PACKAGES = (
    "chainer",
    "numpy",
    "scipy",
    "Pillow",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "opencv-python-headless",
    "nvtx",
    *(name for kind in kinds().values() for name in kind.distributions),
)


def open_session(cell: Cell) -> Session:
    """Build the cell's model, optimizer and feed, rung by rung."""
    from tcbench.engine.backends.chainer.session import ChainerSession
    from tcbench.engine.backends.chainer.sites import open_site

    return ChainerSession(cell, open_site(cell))


def trace(cell: Cell, properties: GpuProperties) -> Trace:
    """Trace one step of the cell on a GPU that need not be there. The input is one synthetic batch on the device:
    what a feed does is not traced. Of K-FAC's steps it is one that makes factors and inverses."""
    from tcbench.engine.accelerators.device import OpenDevice
    from tcbench.engine.accelerators.tracing import TracingAccelerator, trace_step
    from tcbench.engine.backends.chainer.session import ChainerSession
    from tcbench.engine.feeds.synthetic import UnfilledFeed
    from tcbench.hardware.clock import HostClock

    accelerator = TracingAccelerator(properties, cell.cudnn.fast_batch_norm)
    site = OpenDevice(accelerator, HostClock(), lambda: accelerator.memory.peak_bytes, computes=False)
    traced = msgspec.structs.replace(cell, input=Input(kind="synthetic"), train=_at_every_step(cell.train))
    session = ChainerSession(traced, site, make_feed=UnfilledFeed)
    try:
        return trace_step(session.phases, accelerator)
    finally:
        session.close()


def _at_every_step(train: TrainSettings) -> TrainSettings:
    if not isinstance(train.kfac, KfacSettings):
        return train
    return msgspec.structs.replace(train, kfac=msgspec.structs.replace(train.kfac, interval=1))
