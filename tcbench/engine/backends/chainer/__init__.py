"""The backend for Chainer 7.8.1, the framework of the talk. Importing this module imports neither Chainer nor NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tcbench.core.packages import LADDER
from tcbench.core.record import Cell
from tcbench.engine.accelerators.device import OpenDevice, device_kinds
from tcbench.engine.backends.chainer.rungs import RUNGS as RUNGS
from tcbench.engine.feeds.rungs import INPUT_PACKAGES
from tcbench.engine.session import Session

if TYPE_CHECKING:
    from tcbench.engine.feeds.base import Feed
    from tcbench.engine.feeds.spec import FeedSpec

DEVICES = {name: (*LADDER, *kind.packages) for name, kind in device_kinds().items()}
PACKAGES = (
    *("chainer", "numpy", "scipy", *INPUT_PACKAGES),
    *(name for kind in device_kinds().values() for name in kind.distributions),
)


def open_session(cell: Cell) -> Session:
    """Build the cell's training session on its device."""
    from tcbench.engine.backends.chainer.session import ChainerSession
    from tcbench.engine.backends.chainer.sites import open_site

    return ChainerSession(cell, open_site(cell))


def open_on(cell: Cell, site: OpenDevice, make_feed: Callable[[FeedSpec], Feed] | None) -> Session:
    """Build the cell's training session on another device; see `tcbench.engine.backends.Backend`."""
    from tcbench.engine.backends.chainer.session import ChainerSession

    return ChainerSession(cell, site, make_feed=make_feed)
