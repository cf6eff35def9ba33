"""The operations of a model's layers: what each layer computes in the forward and in the backward phase."""

import itertools
from collections.abc import Iterator
from typing import Literal

from tcbench.core.groups import grouped
from tcbench.core.record import Cell
from tcbench.engine import work
from tcbench.engine.models import known_models
from tcbench.engine.models.geometry import Dropout, Layer, Lrn

_STORED: dict[str, work.DType] = {"fp16": "float16", "bf16": "bfloat16"}


def layer_works(cell: Cell) -> Iterator[tuple[str, str, list[work.Work]]]:
    """Yield (phase, name, operations) for each layer of the cell's model, forward and then backward. `phase` is
    "forward" or "backward". Names are as in timelines, such as "block3.c/conv"."""
    layers = tuple(known_models()[cell.model].layers(cell.variant, cell.image_size, cell.n_classes))
    for phase, ordered in (("forward", layers), ("backward", layers[::-1])):
        for layer in ordered:
            for name, works in grouped(_works(cell, layer, forward=phase == "forward")).items():
                yield phase, name, works


def _works(cell: Cell, layer: Layer, *, forward: bool) -> Iterator[tuple[str, work.Work]]:
    """Yield (name, operation) for each operation of a layer in the forward or in the backward phase.

    In a config with `fused`, addition and ReLU are part of the operation before them and have no names of their own.
    The bias of a fully connected layer has the name of its matrix product. An addition has no backward operation,
    because the gradient of its output is also the gradient of both inputs."""
    dtype: work.DType = next((_STORED[rung] for rung in cell.rungs if rung in _STORED), "float32")
    if layer.kind not in ("conv", "fc"):
        yield from _parameterless_works(cell.batch_size, layer, forward, dtype)
        return
    n, c, size = cell.batch_size, layer.out_channels, layer.out_size
    geometry = layer.in_size, layer.in_size, c, layer.ksize, layer.ksize, layer.stride, layer.pad
    conv = work.Conv2d(n, layer.in_channels, *geometry, "NCHW", dtype)
    name = f"{layer.name}/{layer.kind}"
    if forward:
        yield name, work.ConvFprop(conv)
    else:
        yield name, work.ConvWgrad(conv)
        if not layer.first:
            yield name, work.ConvDgrad(conv)
    values = n * c * size * size
    fused = layer.relu and layer.kind == "conv" and "fused" in cell.rungs
    relu: work.Work = work.Relu(values, dtype) if forward else work.ReluBackward(values, dtype)
    if layer.bias:
        name = name if layer.kind == "fc" else f"{layer.name}/bias" + "+relu" * fused
        bias = (work.AddBiasRelu if fused else work.AddBias) if forward else work.BiasGradient
        yield name, bias(n, c, dtype, size * size)
        if fused and not forward:
            yield name, relu
    else:
        after: Literal["none", "relu", "add_relu"] = "none" if not fused else "add_relu" if layer.add else "relu"
        norm = work.Norm(n, c, size, size, "NCHW", dtype, after)
        name = f"{layer.name}/bn" + {"none": "", "relu": "+relu", "add_relu": "+add+relu"}[after]
        yield name, work.BatchNormForward(norm, 2e-5, 0.1) if forward else work.BatchNormBackward(norm)
        if layer.add and forward and not fused:
            yield f"{layer.name}/add", work.Add(values, dtype)
    if layer.relu and not fused:
        yield f"{layer.name}/relu", relu


def _parameterless_works(n: int, layer: Layer, forward: bool, dtype: work.DType) -> Iterator[tuple[str, work.Work]]:
    """Yield (name, operation) for each operation of a layer without parameters, such as "block1/max pool". `n` is the
    batch size, and `dtype` the one in which activations are stored."""
    c, size, pixels, stage = layer.in_channels, layer.in_size, layer.in_size**2, layer.stage
    kind = "average pool" if layer.kind == "tiled_average" else layer.kind.replace("_", " ")
    name = kind if layer.name == kind else f"{layer.name}/{kind}"
    if layer.kind == "max_pool":
        pool = work.Pool(n, c, size, size, layer.ksize, layer.stride, layer.pad, "NCHW", dtype, layer.ceil)
        yield name, work.MaxPoolForward(pool) if forward else work.MaxPoolBackward(pool)
    elif layer.kind == "average_pool":
        average = work.GlobalAverageForward if forward else work.GlobalAverageBackward
        yield name, average(n, c, size, size, "NCHW", dtype)
    elif layer.kind == "tiled_average":
        tiled = work.TiledAverageForward if forward else work.TiledAverageBackward
        yield name, tiled(n, c, size, layer.out_size, "NCHW", dtype)
    elif isinstance(stage, Lrn):
        lrn = work.LrnForward if forward else work.LrnBackward
        yield name, lrn(n, c, pixels, "NCHW", dtype, stage.size, stage.alpha, stage.beta, stage.k)
    elif isinstance(stage, Dropout):
        drop = work.DropoutForward if forward else work.DropoutBackward
        yield name, drop(n, c, pixels, "NCHW", dtype, stage.ratio)
    else:
        copy = work.PutColumns if forward else work.TakeColumns
        for first, part in zip(itertools.accumulate(layer.parts, initial=0), layer.parts, strict=False):
            yield name, copy(n, part * pixels, c * pixels, first * pixels, dtype)
