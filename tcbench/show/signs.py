"""Signs of verdicts, the same in tables and charts. Each stands beside its word, so that no colour is needed."""

from __future__ import annotations

from collections.abc import Mapping

from tcbench.analysis.compare import CellComparison, Verdict

SIGNS: Mapping[Verdict, str] = {
    "regression": "▼",
    "missing": "✗",
    "changed status": "✗",
    "inconclusive": "?",
    "improved": "▲",
    "pass": "=",
    "new": "+",
    "not measured": "–",
}


def signed(comparison: CellComparison) -> str:
    """A verdict as sign and word, with what a loss sits in or what would decide: `▼ regression in backward`."""
    words = f"{SIGNS[comparison.verdict]} {comparison.verdict}"
    if comparison.verdict == "changed status" and not comparison.failing:
        words = "✓ runs now"
    if comparison.culprit is not None:
        words += f" in {comparison.culprit.name}"
    more = comparison.more_trials
    if comparison.verdict == "inconclusive" and more is not None:
        words += f", {more} more trial{'' if more == 1 else 's'}"
    return words
