"""Routes of a batch normalisation: cuDNN's graphs, its older calls, or a call and a kernel.

The one place of that decision. The graph API normalises NHWC on compute capability 8.0 and newer. In NCHW it would
transpose the whole tensor through workspaces of its size, which would make a straw man of the talk's base; and before
8.0 it has no plans. There the calls that the talk used serve. They fuse ReLU and addition for float16 in NHWC only,
only in the persistent mode, and where the channels are a multiple of 4; elsewhere a kernel of ours follows."""

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
    """Raises ValueError for work on a dtype that no plan or kernel here is written for."""
    if any(operand.dtype == "float64" for operand in work.operands):
        raise ValueError(f"{work.name}: on a GPU: expected float32 or 16 bits, got float64")


@functools.cache
def batch_norm(norm: Norm, eps: float, momentum: float, sm: int, fast: bool) -> BatchNormRoute:
    """The route on a GPU of compute capability `sm`; `fast` allows the persistent mode of cuDNN's calls (slide 10)."""
    if norm.layout == "NHWC" and sm >= GRAPHS_FROM_SM:
        return BatchNormRoute(norm, BatchNormForward(norm, eps, momentum), BatchNormBackward(norm), "none")
    fused = norm.after == "none" or (norm.layout == "NHWC" and norm.dtype == "float16" and fast and norm.c % 4 == 0)
    alone = norm if fused else replace(norm, after="none")
    return BatchNormRoute(
        norm,
        BatchNormCallForward(alone, eps, momentum, fast),
        BatchNormCallBackward(alone, eps, fast),
        "none" if fused else norm.after,
    )
