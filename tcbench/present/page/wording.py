"""Words and numbers that several sections write alike, and their badges.

Owns how a figure, an interval, a status or a verdict reads on the page.
"""

from __future__ import annotations

from collections.abc import Mapping

from tcbench.analysis.bottleneck import Verdict as BottleneckVerdict
from tcbench.analysis.compare import Verdict
from tcbench.analysis.summary import CellSummary
from tcbench.core.record import Status
from tcbench.present.charts.wording import why_missing
from tcbench.present.tables import Badge
from tcbench.present.verdicts import FORMS

_LONGEST_REASON = 44

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
