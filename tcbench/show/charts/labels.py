"""Words beside points: each where it covers nothing else, and left out where there is no such place.

Works in pixels, on a page that is settled. Knows nothing of what the words say.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tcbench.show.charts.page import put
from tcbench.show.charts.text import DPI

_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
"""Right, left, above, below, then the corners."""


def label(
    axes: Axes,
    words: str,
    at: tuple[float, float],
    taken: list[Bbox],
    *,
    gap: float,
    far: bool = False,
    avoid: Any = (),
    **style: Any,
) -> Text | None:
    """Write words `gap` pixels beside a point of the data, at the first place within the axes that covers none of the
    boxes `taken` and fewest of the points `avoid`; both in pixels, `avoid` shaped (n, 2). The place taken joins
    `taken`; `far`: places twice as far off count too. Returns None where there is none."""
    text = put(axes, words, at, **style)
    x, y = axes.transData.transform(at)
    x0, y0, x1, y1 = np.array([box.extents for box in taken]).reshape(-1, 4).T
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
    text.set_position(((box.x0 + box.x1 - 2 * x) * 36 / DPI, (box.y0 + box.y1 - 2 * y) * 36 / DPI))
    taken.append(box.padded(2, 1))
    return text


def around(points: Sequence[tuple[float, float]], half: float) -> list[Bbox]:
    """Squares around points, pixels."""
    return [Bbox([[x - half, y - half], [x + half, y + half]]) for x, y in points]


def _places(x: float, y: float, size: Bbox, gap: float, far: bool) -> Iterator[Bbox]:
    for reach in (1, 2)[: 1 + far]:
        for right, up in _DIRECTIONS:
            left = x + right * reach * gap + (right - 1) / 2 * size.width
            bottom = y + up * reach * gap + (up - 1) / 2 * size.height
            yield Bbox.from_bounds(left, bottom, size.width, size.height)
