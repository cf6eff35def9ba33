"""Max pooling, global average pooling, and average pooling over windows."""

import itertools
from collections.abc import Iterator

import numpy as np

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.reference.maps import pixel_axes, planes, taps
from tcbench.engine.accelerators.cpu.reference.operands import Operands, computes, where_set


@computes(w.MaxPoolForward, cut="x y place")
def max_pool(work: w.MaxPoolForward, a: Operands) -> None:
    """Compute the maximum of each window, with NaN as the largest value, and the first place that holds it."""
    pool, x, y = work.pool, a.x, a.result("y")
    y[...] = -np.inf
    maxima, places = planes(pool.layout, y), planes(pool.layout, a.raw("place"))
    for _, _, outputs, pixels in taps(pool):
        np.maximum(maxima[outputs], planes(pool.layout, x)[pixels], out=maxima[outputs])
    places[...] = 255
    for r, s, outputs, pixels in taps(pool):
        values = planes(pool.layout, x)[pixels]
        holds = (values == maxima[outputs]) | np.isnan(values)
        # The place if it holds the maximum, else 255.
        candidates = (holds.view(np.uint8) - np.uint8(1)) | np.uint8(r * pool.ksize + s)
        np.minimum(places[outputs], candidates, out=places[outputs])
    a.write(y=y)


@computes(w.MaxPoolBackward, cut="gy place gx")
def max_pool_backward(work: w.MaxPoolBackward, a: Operands) -> None:
    """Compute gx: each pixel gets the sum of gy over the windows whose maximum it is."""
    gy, place = (planes(work.pool.layout, array) for array in (a.gy, a.raw("place")))
    gx = np.zeros(a.raw("gx").shape, gy.dtype)
    for r, s, outputs, pixels in taps(work.pool):
        is_maximum = place[outputs] == r * work.pool.ksize + s
        planes(work.pool.layout, gx)[pixels] += where_set(is_maximum, gy[outputs])
    a.write(gx=gx)


@computes(w.GlobalAverageForward, cut="x y")
def global_average(work: w.GlobalAverageForward, a: Operands) -> None:
    """Compute y = the mean over all pixels."""
    a.write(y=a.x.mean(pixel_axes(work.layout)))


@computes(w.GlobalAverageBackward, cut="gy gx")
def global_average_backward(work: w.GlobalAverageBackward, a: Operands) -> None:
    """Compute gx = gy / (H * W) at every pixel."""
    share = a.gy / (work.h * work.w)
    a.write(gx=np.expand_dims(share, pixel_axes(work.layout)))


def _windows(work: w.TiledAverageForward | w.TiledAverageBackward) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield each output's row and column, with its window's rows and columns."""
    spans = [(i, slice(i * work.stride, i * work.stride + work.ksize)) for i in range(work.out)]
    for (p, rows), (q, columns) in itertools.product(spans, spans):
        yield p, q, rows, columns


@computes(w.TiledAverageForward, cut="x y")
def tiled_average(work: w.TiledAverageForward, a: Operands) -> None:
    """Compute y = the mean over each window."""
    x, y = a.x, np.empty(a.raw("y").shape, a.x.dtype)
    for p, q, rows, columns in _windows(work):
        planes(work.layout, y)[..., p, q] = planes(work.layout, x)[..., rows, columns].mean((2, 3))
    a.write(y=y)


@computes(w.TiledAverageBackward, cut="gy gx")
def tiled_average_backward(work: w.TiledAverageBackward, a: Operands) -> None:
    """Compute gx: each pixel gets the sum of gy / ksize ** 2 over the windows that contain it."""
    shares = planes(work.layout, a.gy / work.ksize**2)
    gx = np.zeros(a.raw("gx").shape, shares.dtype)
    for p, q, rows, columns in _windows(work):
        planes(work.layout, gx)[..., rows, columns] += shares[..., p, q, None, None]
    a.write(gx=gx)
