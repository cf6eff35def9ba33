"""A profile set beside a run in words: when each was taken, and how fast each was."""

from tcbench.analysis.summary import CellSummary
from tcbench.present.format import number
from tcbench.present.naming import rate_unit

_UNLIKE = 0.1
"""Speeds that differ by more than this share are said on one day too."""


def apart(taken_at: str | None, step_s: float, run: CellSummary) -> str | None:
    """The date and speed of a cell's profile and of the run beside it; None where both fit. `taken_at`: UTC, ISO 8601,
    None where that is not known; `step_s`: a step's time in the profile."""
    if run.step_time_s is None or run.images_per_s is None or not step_s:
        return None
    rate = run.cell.images_per_step / step_s
    unlike = abs(rate / run.images_per_s.value - 1) > _UNLIKE
    days = taken_at[:10] if taken_at else None, run.began_at[:10]
    if not unlike and days[0] in (None, days[1]):
        return None
    unit = rate_unit([run.cell])
    return (
        f"{run.cell.label}: profiled {days[0] or 'at an unknown time'} at {number(rate)} {unit}, another session than "
        f"the run beside it, of {days[1]} at {number(run.images_per_s.value)} {unit}"
    )
