"""The choice of operations for a batch normalisation on a GPU.

- cuDNN's graph API: for NHWC on compute capability 8.0 and newer. Older GPUs have no plans. In NCHW it would transpose
  the whole tensor, which would make the talk's baseline slower than it was.
- cuDNN's older calls, as in the talk: otherwise. They fuse ReLU and addition only for float16 in NHWC, in the
  persistent mode, with channels in multiples of 4.
- An older call, then one of our kernels for ReLU and addition: if the call cannot fuse them."""

import functools
from dataclasses import replace

from tcbench.engine.accelerators.protocol import BatchNormRoute
from tcbench.engine.work import (
    BatchNormBackward,
    BatchNormCallBackward,
    BatchNormCallForward,
    BatchNormForward,
    Norm,
    Work,
)

GRAPHS_FROM_SM = 80


def check_dtypes(work: Work) -> None:
    """Raise ValueError for an operation on float64, which has no plans or kernels."""
    if any(operand.dtype == "float64" for operand in work.operands):
        raise ValueError(f"{work.name}: on a GPU: expected float32 or 16 bits, got float64")


@functools.cache
def batch_norm(norm: Norm, eps: float, momentum: float, sm: int, fast: bool) -> BatchNormRoute:
    """Return the operations of a batch normalisation for a GPU of compute capability `sm` (90 for 9.0). `fast` allows
    the persistent mode of cuDNN's older calls (slide 10 of the talk)."""
    if norm.layout == "NHWC" and sm >= GRAPHS_FROM_SM:
        return BatchNormRoute(norm, BatchNormForward(norm, eps, momentum), BatchNormBackward(norm), "none")
    fused = norm.after == "none" or (norm.layout == "NHWC" and norm.dtype == "float16" and fast and norm.c % 4 == 0)
    unfused = norm if fused else replace(norm, after="none")
    return BatchNormRoute(
        norm,
        BatchNormCallForward(unfused, eps, momentum, fast),
        BatchNormCallBackward(unfused, eps, fast),
        "none" if fused else norm.after,
    )
