"""Every piece of work, computed by the product's plain operations in float64 with one rounding at the end: what
kernels, cuDNN graphs and oneDNN are checked against. `test_operations.py` of the processor checks the operations.

`REFERENCE[work.name](work, *arrays)` takes arrays in the order of `work.operands` (NumPy, C-contiguous, any shape of
the operand's size) and writes those that are `out` or `inout` in place.

Here alone is the work that only GPUs do. A reserve space's bits are cuDNN's own; here they are a bit per value, y > 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.reference import norm
from tcbench.engine.accelerators.cpu.reference.operands import OPERATIONS, Operands, make_launch, make_operands

Array = np.ndarray[Any, Any]


def in_float64(work: w.Work, *arrays: Array) -> None:
    for operand, array in zip(work.operands, arrays, strict=True):
        if array.size != operand.size or array.dtype != operand.dtype or not array.flags.c_contiguous:
            raise TypeError(f"{work.name}: {array.shape} {array.dtype} is no {operand}")
    make_launch(work, *arrays, exact=True)()


REFERENCE: dict[str, Callable[..., None]] = {kind.name: in_float64 for kind in OPERATIONS}


def of_gpus(kind: type[w.Work]) -> Callable[[Callable[[Any, Operands], None]], Callable[..., None]]:
    def register(compute: Callable[[Any, Operands], None]) -> Callable[..., None]:
        def reference(work: w.Work, *arrays: Array) -> None:
            with np.errstate(all="ignore"):
                compute(work, make_operands(work, *arrays, exact=True))

        REFERENCE[kind.name] = reference
        return reference

    return register


@of_gpus(w.BatchNormCallForward)
def batch_norm_call_forward(work: w.BatchNormCallForward, a: Operands) -> None:
    mask = np.empty(work.norm.shape, bool)
    norm.forward(work, a.with_arrays({"mask": mask}))
    if work.norm.relu:
        bits = np.packbits(mask)
        a.raw("reserve")[: bits.size] = bits


@of_gpus(w.BatchNormCallBackward)
def batch_norm_call_backward(work: w.BatchNormCallBackward, a: Operands) -> None:
    size, shape = work.norm.size, work.norm.shape
    mask = np.unpackbits(a.raw("reserve"), count=size).reshape(shape).astype(bool) if work.norm.relu else None
    norm.backward(work, a if mask is None else a.with_arrays({"mask": mask}))


@of_gpus(w.BeginInverse)
def begin_inverse(work: w.BeginInverse, a: Operands) -> None:
    a.write(factor=a.x, x=np.eye(work.size))


@of_gpus(w.EndInverse)
def end_inverse(work: w.EndInverse, a: Operands) -> None:
    if a.raw("minor")[0]:
        a.write(x=np.nan, info=a.raw("minor"))
