"""The form of a verdict and of a status: sign, word, tone and icon, the same on the console, in charts and on the page.
A sign or an icon stands beside each word, so that no colour is needed."""

import re
from collections.abc import Mapping

from tcbench.analysis.compare import CellComparison, Verdict
from tcbench.analysis.summary import CellSummary
from tcbench.core.record import Status
from tcbench.show.format import counted, listed
from tcbench.show.tables import Badge, Tone

STYLES: Mapping[Tone, str] = {"bad": "bold red", "warn": "yellow", "good": "green", "plain": ""}
"""On a console."""

FORMS: Mapping[Verdict, Badge] = {
    "regression": Badge("regression", "down", "bad", "▼"),
    "missing": Badge("missing", "gone", "bad", "✗"),
    "changed status": Badge("changed status", "swap", "bad", "✗"),
    "inconclusive": Badge("inconclusive", "question", "warn", "?"),
    "improved": Badge("improved", "up", "good", "▲"),
    "pass": Badge("pass", "check", sign="="),
    "new": Badge("new", "plus", sign="+"),
    "not measured": Badge("not measured", "gone", sign="–"),
}

STATUS_BADGES: Mapping[Status, Badge] = {
    "ok": Badge("ok", "check", "good"),
    "skipped": Badge("skipped", "skip"),
    "oom": Badge("out of memory", "full", "warn"),
    "failed": Badge("failed", "cross", "bad"),
    "timeout": Badge("timed out", "clock", "bad"),
    "crashed": Badge("crashed", "bolt", "bad"),
}
"""How a trial or a cell ended."""


def why_missing(summary: CellSummary | None) -> str:
    """A few words for a cell without a number: "out of memory", "skipped: needs cv2"."""
    if summary is None:
        return "not run"
    words = STATUS_BADGES[summary.status].word
    if summary.status not in ("skipped", "failed") or not summary.reason:
        return words
    reason = summary.reason
    for rung in summary.cell.rungs:
        reason = reason.removeprefix(f"{rung}: ")
    package = re.match(r"needs the package (\S+?):", reason)
    return f"{words}: {'needs ' + package[1] if package else reason}"


def tone(comparison: CellComparison) -> Tone:
    """Of one cell's verdict. Bad is only what fails: a cell that runs now does not, nor one that is allowed to miss."""
    tone = FORMS[comparison.verdict].tone
    return "plain" if tone == "bad" and not comparison.failing else tone


def signed(comparison: CellComparison) -> str:
    """A verdict as sign and word, with what a loss sits in or what would decide: `▼ regression in backward`."""
    words = FORMS[comparison.verdict].signed
    if comparison.verdict == "changed status" and not comparison.failing:
        words = "✓ runs now"
    if comparison.culprit is not None:
        words += f" in {comparison.culprit.name}"
    if comparison.slower_phases:
        names = listed([phase.name for phase in comparison.slower_phases])
        words += ", work moved" if comparison.moved else f", {names} slower"
    if comparison.verdict == "inconclusive" and comparison.more_trials is not None:
        words += f", {counted(comparison.more_trials, 'more trial')}"
    return words
