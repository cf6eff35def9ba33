"""The processor as an accelerator: NumPy, on a few threads.

Every dtype that work has is computed here, float64 too: it is the reference that numerics holds others against, and the
accelerator of any machine. Work is done when `launch` returns."""

import functools
from collections.abc import Callable

from tcbench.core.record import PlanChoice
from tcbench.engine.accelerators.cpu.arrays import HostArrays
from tcbench.engine.accelerators.cpu.reference.operands import make_launch
from tcbench.engine.accelerators.protocol import Array, BatchNormRoute
from tcbench.engine.work import BatchNormBackward, BatchNormForward, Norm, Work


class NumpyAccelerator(HostArrays):
    """See `tcbench.engine.accelerators.protocol.Accelerator`."""

    adds_to_dgrad = True

    def batch_norm(self, norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
        return _batch_norm(norm, eps, momentum)

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        return make_launch(work, *arrays)

    def plans(self) -> tuple[PlanChoice, ...]:
        """None: there is one way to do a piece of work here."""
        return ()


@functools.cache
def _batch_norm(norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
    return BatchNormRoute(norm, BatchNormForward(norm, eps, momentum), BatchNormBackward(norm), "none")
