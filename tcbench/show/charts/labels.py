"""Labels next to points, placed so that they cover nothing else, or left out if there is no free place. Call it after
the page is settled, because it works in pixels."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tcbench.show.charts.page import put
from tcbench.show.charts.text import DPI

_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
"""The directions in which a label is tried: right, left, above, below, then the corners."""


def label(
    axes: Axes,
    words: str,
    point: tuple[float, float],
    occupied: list[Bbox],
    *,
    gap: float,
    far: bool = False,
    avoid: Any = (),
    **style: Any,
) -> Text | None:
    """Write a label `gap` pixels from a point of the data and return it; None if there is no free place.

    A place is free if it lies within the axes and overlaps none of the boxes `occupied`. The free place that covers the
    fewest points of `avoid`, an array shaped (n, 2), is used, and added to `occupied`. Boxes and points are in pixels.
    With `far`, places at twice the distance are tried too."""
    text = put(axes, words, point, **style)
    x, y = axes.transData.transform(point)
    x0, y0, x1, y1 = np.array([box.extents for box in occupied]).reshape(-1, 4).T
    free = [
        box
        for box in _places(x, y, text.get_window_extent(), gap, far)
        if all(axes.bbox.contains(*corner) for corner in (box.min, box.max))
        and not ((x0 < box.x1) & (box.x0 < x1) & (y0 < box.y1) & (box.y0 < y1)).any()
    ]
    if not free:
        text.remove()
        return None
    box = min(free, key=lambda box: box.count_contains(avoid)) if len(avoid) else free[0]
    # From the point to the middle of the box, in typographic points: half of twice the distance, times 72 / DPI.
    text.set_position(((box.x0 + box.x1 - 2 * x) * 36 / DPI, (box.y0 + box.y1 - 2 * y) * 36 / DPI))
    occupied.append(box.padded(2, 1))
    return text


def squares_around(points: Sequence[tuple[float, float]], half_side: float) -> list[Bbox]:
    """Return a square around each point. Points and half the side are in pixels."""
    return [Bbox([[x - half_side, y - half_side], [x + half_side, y + half_side]]) for x, y in points]


def _places(x: float, y: float, size: Bbox, gap: float, far: bool) -> Iterator[Bbox]:
    """Yield boxes of a label's size in eight directions at a distance of `gap`; with `far` then at twice the distance.
    The point (x, y), the size and the gap are in pixels."""
    for reach in (1, 2)[: 1 + far]:
        for right, up in _DIRECTIONS:
            left = x + right * reach * gap + (right - 1) / 2 * size.width
            bottom = y + up * reach * gap + (up - 1) / 2 * size.height
            yield Bbox.from_bounds(left, bottom, size.width, size.height)
