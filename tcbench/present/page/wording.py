"""Words and numbers that several sections write alike, and their badges.

Owns how a figure, an interval, a status or a verdict reads on the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tcbench.analysis.bottleneck import BoundVerdict as BottleneckVerdict
from tcbench.analysis.compare import Verdict
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary
from tcbench.core.record import Status
from tcbench.present import tables
from tcbench.present.charts.wording import why_missing
from tcbench.present.page.page import Badge, Column, Field, Table
from tcbench.present.verdicts import FORMS

_LONGEST_REASON = 44

R = TypeVar("R")

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
    "network-bound": Badge("network-bound", "network"),
    "balanced": Badge("balanced", "equal"),
}


def spaced(config: str) -> str:
    """A config as its rungs, so that lines may break between them, but not after a plus: "fp16 + dali"."""
    return kept_together(config.replace("+", " + "))


def kept_together(text: str) -> str:
    """No line breaks after a plus."""
    return text.replace("+ ", "+\u00a0")


def shortened(text: str, most: int) -> str:
    """At most so many letters: begin and end, which tell configs apart, with an ellipsis between."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half].rstrip()}…{text[-half:].lstrip()}"


def why(summary: CellSummary | None) -> str:
    """Why a cell has no number, in the space of a bar."""
    text = why_missing(summary)
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1].rstrip() + "…"


# -- fields of tables ----------------------------------------------------------------------------------------------


def table(caption: str, columns: Sequence[tables.Column[R]], rows: Iterable[R], filters: tuple[str, ...] = ()) -> Table:
    """A table that is written once (`tcbench.present.tables`). Its columns sort by their values; a heading is a
    filter's key too."""
    shown = [column for column in columns if column.on != "console"]

    def head(one: tables.Column[R]) -> Column:
        name = one.heading.replace("-\n", "-").replace("\n", " ")
        return Column(name, one.kind.numeric, name if name in filters else "", one.ratio is not None)

    entries = tuple(tuple(_field(one, row) for one in shown) for row in rows)
    return Table(caption, tuple(map(head, shown)), entries, filters)


def _field(column: tables.Column[R], row: R) -> Field:
    value = column.value(row)
    if isinstance(value, Field):
        return value
    if isinstance(value, Badge):
        return Field(badge=value)
    middle = value.value if isinstance(value, Interval) else value
    return Field(column.text(row, within=False), middle if isinstance(middle, int | float) else None)
