"""Routes of a batch normalisation: cuDNN's graphs, its older calls, or a call and a kernel.

The one place of that decision. The graph API normalises NHWC on compute capability 8.0 and newer. In NCHW it would
transpose the whole tensor through workspaces of its size, which would make a straw man of the talk's base; and before
8.0 it has no plans. There the calls that the talk used serve. They fuse ReLU and addition for float16 in NHWC only,
only in the persistent mode, and where the channels are a multiple of 4; elsewhere a kernel of ours follows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

from tcbench.work import (
    BatchNormBackward,
    BatchNormCallBackward,
    BatchNormCallForward,
    BatchNormForward,
    DType,
    Layout,
    Norm,
    reserve_bytes,
)

After = Literal["none", "relu", "add_relu"]
GRAPHS_FROM_SM = 80


@dataclass(frozen=True)
class BatchNormRoute:
    """The work forward and backward, and what forward keeps for backward beside the statistics.

    `then`: what a kernel of ours does after it (and before the backward work).
    """

    norm: Norm
    forward: BatchNormForward | BatchNormCallForward
    backward: BatchNormBackward | BatchNormCallBackward
    then: After

    @property
    def kept(self) -> tuple[tuple[int, ...], str] | None:
        """Shape and dtype of ReLU's mask, or of the calls' reserve space; None when ReLU is not fused."""
        norm = self.forward.norm
        if not norm.relu:
            return None
        if isinstance(self.forward, BatchNormForward):
            return norm.shape, "bool"
        return (reserve_bytes(norm),), "uint8"


@functools.cache
def batch_norm(
    shape: tuple[int, ...],
    layout: Layout,
    dtype: DType,
    after: After,
    eps: float,
    momentum: float,
    sm: int,
    fast: bool,
) -> BatchNormRoute:
    """The route on a GPU of compute capability `sm`; `fast` allows the persistent mode."""
    n, c, h, w = shape if layout == "NCHW" else (shape[0], shape[3], shape[1], shape[2])
    norm = Norm(n, c, h, w, layout, dtype, after)
    if layout == "NHWC" and sm >= GRAPHS_FROM_SM:
        return BatchNormRoute(norm, BatchNormForward(norm, eps, momentum), BatchNormBackward(norm), "none")
    fused = after == "none" or (layout == "NHWC" and dtype == "float16" and fast and c % 4 == 0)
    alone = norm if fused else replace(norm, after="none")
    return BatchNormRoute(
        norm,
        BatchNormCallForward(alone, eps, momentum, fast),
        BatchNormCallBackward(alone, eps, fast),
        "none" if fused else after,
    )


@functools.cache
def batch_norm_from_sums(shape: tuple[int, ...], layout: Layout, dtype: DType, after: After) -> BatchNormRoute:
    """The route back where the convolution has taken the statistics: there is no mask, so ReLU's gradient is a kernel.
    `forward` is what it stands in for and is not launched."""
    n, c, h, w = shape if layout == "NCHW" else (shape[0], shape[3], shape[1], shape[2])
    norm = Norm(n, c, h, w, layout, dtype, after)
    alone = replace(norm, after="none")
    return BatchNormRoute(norm, BatchNormForward(alone, 0.0, 0.0), BatchNormBackward(alone), after)
