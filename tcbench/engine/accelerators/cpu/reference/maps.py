"""Views of maps (N, C, H, W) with the same order of axes for every layout."""

import itertools
from collections.abc import Iterator
from typing import Any

from tcbench.engine import work
from tcbench.engine.accelerators.cpu.threads import Array

Index = tuple[Any, ...]


def planes(layout: work.Layout, stored: Array) -> Array:
    """Return stored maps as a view (C, N, H, W)."""
    return stored.transpose((1, 0, 2, 3) if layout == "NCHW" else (3, 0, 1, 2))


def from_planes(layout: work.Layout, planes: Array) -> Array:
    """Return maps (C, N, H, W) as a view in the order of the layout."""
    return planes.transpose((1, 0, 2, 3) if layout == "NCHW" else (1, 2, 3, 0))


def pixel_axes(layout: work.Layout) -> tuple[int, int]:
    """Return the axes of rows and columns in stored maps."""
    return (2, 3) if layout == "NCHW" else (1, 2)


def taps(shape: work.Conv2d | work.Pool) -> Iterator[tuple[int, int, Index, Index]]:
    """Yield each tap (row, column) of the window with its outputs and its pixels, as indices into planes.

    The outputs are those for which the tap is inside the image; the pixels are those that it covers for these outputs.
    """
    sides = (shape.r, shape.s) if isinstance(shape, work.Conv2d) else (shape.ksize, shape.ksize)
    along = (
        list(_taps_along(size, outputs, side, shape.stride, shape.pad))
        for size, outputs, side in zip((shape.h, shape.w), (shape.p, shape.q), sides, strict=True)
    )
    for (r, p, rows), (s, q, columns) in itertools.product(*along):
        yield r, s, (..., p, q), (..., rows, columns)


def _taps_along(size: int, outputs: int, side: int, stride: int, pad: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield each tap along one axis with its outputs and its pixels."""
    for tap in range(side):
        first = max(0, -(-(pad - tap) // stride))
        count = max(0, min(outputs, (size - 1 + pad - tap) // stride + 1) - first)
        pixel = first * stride + tap - pad
        yield tap, slice(first, first + count), slice(pixel, pixel + count * stride, stride)
