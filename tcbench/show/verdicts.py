"""Verdicts and statuses as sign, word, tone and icon, the same on the console, in charts and on the page. Each word has
a sign or an icon next to it, so that nothing depends on colour."""

import re
from collections.abc import Mapping

from tcbench.analysis.compare import CellComparison, Verdict
from tcbench.analysis.summary import CellSummary
from tcbench.core.record import Status
from tcbench.show.format import counted, listed
from tcbench.show.tables import Badge, Tone

STYLES: Mapping[Tone, str] = {"bad": "bold red", "warn": "yellow", "good": "green", "plain": ""}
"""The console's style for each tone."""

FORMS: Mapping[Verdict, Badge] = {
    "regression": Badge("regression", "down", "bad", "▼"),
    "missing": Badge("missing", "gone", "bad", "✗"),
    "changed status": Badge("changed status", "swap", "bad", "✗"),
    "unstable": Badge("unstable", "bolt", "warn", "~"),
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
"""The badge for each status of a trial or a cell."""


def why_missing(summary: CellSummary | None) -> str:
    """Say in a few words why a cell has no number: "out of memory", "skipped: needs cv2"."""
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
    """Return the tone of a cell's verdict: "plain" instead of "bad" if the cell does not make the comparison fail."""
    tone = FORMS[comparison.verdict].tone
    return "plain" if tone == "bad" and not comparison.failing else tone


def signed(comparison: CellComparison) -> str:
    """Return a verdict as sign and words: "▼ regression in backward", "? inconclusive, 3 more trials"."""
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
