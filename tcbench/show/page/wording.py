"""Words and numbers that several sections write alike, and their badges.

Owns how a figure, an interval, a status or a verdict reads on the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from tcbench.analysis.bottleneck import Verdict as BottleneckVerdict
from tcbench.analysis.compare import Verdict
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary
from tcbench.core.record import Cell, Status
from tcbench.core.text import plain
from tcbench.show.charts.wording import why_missing
from tcbench.show.console import config_in_ladder
from tcbench.show.format import number
from tcbench.show.page.page import Badge, Column, Field, Row
from tcbench.show.verdicts import FORMS

LONGEST_LABEL = 36
"""Letters of the name of a row."""

_LONGEST_REASON = 44
_EM_PER_LETTER = 0.6
"""Width of a letter of the page's fonts, on average."""
_LEAST_PLOT_EM = 12
"""Plots are hardly ever narrower."""

STATUS_BADGES: Mapping[Status, Badge] = {
    "ok": Badge("ok", "check", "good"),
    "skipped": Badge("skipped", "skip"),
    "oom": Badge("out of memory", "full", "warn"),
    "failed": Badge("failed", "cross", "bad"),
    "timeout": Badge("timed out", "clock", "bad"),
    "crashed": Badge("crashed", "bolt", "bad"),
}

VERDICT_BADGES: Mapping[Verdict, Badge] = {
    verdict: Badge(form.word, form.icon, form.tone) for verdict, form in FORMS.items()
}

BOTTLENECK_BADGES: Mapping[BottleneckVerdict, Badge] = {
    "input-bound": Badge("input-bound", "input"),
    "host-bound": Badge("host-bound", "host"),
    "gpu-bound": Badge("gpu-bound", "full"),
    "balanced": Badge("balanced", "equal"),
}


def one_line(text: str) -> str:
    """A text without line breaks, runs of spaces, or anything that cannot be shown."""
    return " ".join(plain(" ".join(text.split())).split())


def spaced(config: str) -> str:
    """A config as its rungs, so that lines may break between them, but not after a plus: "fp16 + dali"."""
    return kept_together(one_line(config.replace("+", " + ")))


def kept_together(text: str) -> str:
    """No line breaks after a plus."""
    return text.replace("+ ", "+\u00a0")


def room_em(rows: Iterable[Row]) -> int:
    """The room right of a plot that the words of some rows take: those in its midst need less of it."""
    written = [(len(f"{row.words} {row.aside}"), row.at) for row in rows if row.marks]
    needed = (_EM_PER_LETTER * letters + 0.8 - _LEAST_PLOT_EM * (1 - at / 100) for letters, at in written)
    return max(1, math.ceil(max(needed, default=1.0)))


def label(cell: Cell, above: Cell | None) -> str:
    """A config's name in a row: what it adds, below a config that it adds to."""
    name = config_in_ladder(cell, above)
    added = name.startswith("  ")
    return ("\u2002" if added else "") + shortened(one_line(name), LONGEST_LABEL)


def shortened(text: str, most: int) -> str:
    """At most so many letters: begin and end, which tell configs apart, with an ellipsis between."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half].rstrip()}…{text[-half:].lstrip()}"


def why(summary: CellSummary | None) -> str:
    """Why a cell has no number, in the space of a bar."""
    text = one_line(why_missing(summary))
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1].rstrip() + "…"


def width_em(texts: Iterable[str], least: int = 4, most: int = 22) -> int:
    """The room that the longest of some texts takes."""
    longest = max(map(len, texts), default=0)
    return min(most, max(least, math.ceil(_EM_PER_LETTER * longest + 0.6)))


# -- fields of tables ----------------------------------------------------------------------------------------------


def figure(value: float | None, text: str | None = None) -> Field:
    """A number, by which its column sorts; empty where there is none."""
    if value is None or not math.isfinite(value):
        return Field("" if value is None else text or "no limit", None if value is None else value)
    return Field(number(value) if text is None else text, value)


def middle(interval: Interval | None, write: Callable[[float], str] = number) -> Field:
    """The value of an interval, by which its column sorts; empty where there is none."""
    return Field() if interval is None else Field(write(interval.value), interval.value)


def badge(of: Badge) -> Field:
    """A badge, which sorts by its word."""
    return Field(badge=of)


def columns(*names: str) -> tuple[Column, ...]:
    """Columns; a name that begins with "#" is of numbers."""
    return tuple(Column(name.lstrip("#"), numeric=name.startswith("#")) for name in names)
