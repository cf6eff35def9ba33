"""The PyTorch backend, for comparison with Chainer: the same model, weights, input and optimizer in PyTorch's own
operations, and rungs that PyTorch users commonly apply. Importing this module imports neither PyTorch nor NumPy."""

from typing import Any

from tcbench.core.errors import SelectionError
from tcbench.core.packages import ML_DTYPES, Package
from tcbench.core.record import Cell
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.backends.torch.rungs import RUNGS as RUNGS
from tcbench.engine.feeds.rungs import INPUT_PACKAGES
from tcbench.engine.session import Session

DEVICES = {
    "cpu": (Package("torch", "uv pip install torch --torch-backend=cpu"), ML_DTYPES),
    "cuda": (Package("torch", "uv sync --extra cuda13 --extra torch"), ML_DTYPES),
}
PACKAGES = ("torch", "numpy", *INPUT_PACKAGES, "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "triton")


def open_session(cell: Cell) -> Session:
    """Build the cell's training session on its device."""
    from tcbench.engine.backends.torch.session import TorchSession
    from tcbench.engine.backends.torch.sites import open_site

    return TorchSession(cell, open_site(cell.device))


def open_on(cell: Cell, site: OpenDevice, make_feed: Any) -> Session:  # noqa: ARG001
    """Raise SelectionError: PyTorch runs on no device but its own."""
    raise SelectionError(f"config '{cell.config}': PyTorch cannot be traced without a GPU; leave its configs out")
