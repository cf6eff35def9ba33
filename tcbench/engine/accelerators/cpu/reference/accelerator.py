"""The CPU accelerator that uses NumPy on a few threads.

It supports all operations and dtypes, including float64, on any machine. `numerics` compares other accelerators with
it. Work is complete when `launch` returns."""

import functools
from collections.abc import Callable

from tcbench.core.record import PlanChoice
from tcbench.engine.accelerators.cpu.arrays import HostArrays
from tcbench.engine.accelerators.cpu.reference.operands import make_launch
from tcbench.engine.accelerators.protocol import Array, BatchNormRoute
from tcbench.engine.work import BatchNormBackward, BatchNormForward, Norm, Work


class NumpyAccelerator(HostArrays):
    """The host's processor, with NumPy for all operations."""

    adds_to_dgrad = True

    def batch_norm(self, norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
        return _batch_norm(norm, eps, momentum)

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        return make_launch(work, *arrays)

    def plans(self) -> tuple[PlanChoice, ...]:
        """Return nothing, since each operation has a single implementation."""
        return ()


@functools.cache
def _batch_norm(norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
    """Return the operations for a batch normalisation, with residual and ReLU fused."""
    return BatchNormRoute(norm, BatchNormForward(norm, eps, momentum), BatchNormBackward(norm), "none")
