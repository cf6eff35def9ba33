"""Short words for a cell that has no number.

Knows nothing of fonts, of places, or of matplotlib.
"""

import re

from tcbench.analysis.summary import CellSummary
from tcbench.core.record import Status
from tcbench.present.verdicts import STATUS_BADGES


def ended(status: Status) -> str:
    """The end of a cell in words."""
    return STATUS_BADGES[status].word


def why_missing(summary: CellSummary | None) -> str:
    """A few words for a cell without a number: "out of memory", "skipped: needs cv2"."""
    if summary is None:
        return "not run"
    words = ended(summary.status)
    if summary.status not in ("skipped", "failed") or not summary.reason:
        return words
    reason = summary.reason
    for rung in summary.cell.rungs:
        reason = reason.removeprefix(f"{rung}: ")
    package = re.match(r"needs the package (\S+?):", reason)
    return f"{words}: {'needs ' + package[1] if package else reason}"
