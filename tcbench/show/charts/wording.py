"""What a chart writes for a value, and for a cell that has none.

Owns numbers and reasons as short words. Knows nothing of fonts, of places, or of matplotlib.
"""

from __future__ import annotations

import math
import re

from tcbench.analysis.summary import CellSummary
from tcbench.core.record import Status

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def prefix_of(size: float) -> tuple[float, str]:
    """The SI prefix for values about `size`; none from 0.01 to 10,000, where plain digits read better."""
    if size == 0 or 0.01 <= size < 1e4:
        return 1.0, ""
    return next((pair for pair in _PREFIXES if size >= pair[0]), _PREFIXES[-1])


def number(value: float, as_part_of: float | None = None) -> str:
    """Three digits, or all of a whole number's: 0.0123, 4.56, 78.9, 1234, 12.3k, 4.56M. Prefix and decimals are those
    of `as_part_of` where that is given."""
    size = float(f"{abs(value if as_part_of is None else as_part_of):.3g}")  # 9.999 is written as 10.0
    unit, prefix = prefix_of(size)
    decimals = max(0, 2 - math.floor(math.log10(size / unit))) if size else 0
    return f"{value / unit:.{decimals}f}{prefix}"


def factor(value: float) -> str:
    """1.23×, 12.3×."""
    return f"{value:.2f}×" if value < 10 else f"{number(value)}×"


_WHY: dict[Status, str] = {
    "ok": "ok",
    "skipped": "skipped",
    "oom": "out of memory",
    "failed": "failed",
    "timeout": "timed out",
    "crashed": "crashed",
}


def ended(status: Status) -> str:
    """How a cell ended, in words."""
    return _WHY[status]


def why_missing(summary: CellSummary | None) -> str:
    """A few words for a cell without a number: "out of memory", "skipped: needs cv2"."""
    if summary is None:
        return "not run"
    words = _WHY[summary.status]
    if summary.status not in ("skipped", "failed") or not summary.reason:
        return words
    reason = summary.reason
    for rung in summary.cell.rungs:
        reason = reason.removeprefix(f"{rung}: ")
    package = re.match(r"needs the package (\S+?):", reason)
    return f"{words}: {'needs ' + package[1] if package else reason}"
