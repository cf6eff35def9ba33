"""Chainer 7.8.1: the talk's framework. Importing this module imports neither Chainer nor NumPy."""

from __future__ import annotations

from tcbench.backends.chainer.rungs import RUNGS
from tcbench.record import Cell
from tcbench.session import Session

__all__ = ["DEVICES", "PACKAGES", "RUNGS", "open_session"]

DEVICES = frozenset({"cpu"})
PACKAGES = ("chainer", "numpy", "scipy", "Pillow", "nvidia-dali-cuda120", "opencv-python-headless", "nvtx")


def open_session(cell: Cell) -> Session:
    """Build the cell's model, optimizer and feed, rung by rung."""
    from tcbench.backends.chainer.session import ChainerSession

    return ChainerSession(cell)
