"""The form of a verdict: sign, word, tone and icon, the same on the console, in charts and on the page.

A sign or an icon stands beside each word, so that no colour is needed. Which colour a tone has is for a console
(`STYLES`), a chart or the page to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tcbench.analysis.compare import CellComparison, Verdict
from tcbench.present.tables import Tone

STYLES: Mapping[Tone, str] = {"bad": "bold red", "warn": "yellow", "good": "green", "plain": ""}
"""On a console."""


@dataclass(frozen=True)
class Form:
    """`icon` names a symbol of the page's template."""

    word: str
    sign: str
    icon: str
    tone: Tone = "plain"

    @property
    def signed(self) -> str:
        """`▼ regression`."""
        return f"{self.sign} {self.word}"


FORMS: Mapping[Verdict, Form] = {
    "regression": Form("regression", "▼", "down", "bad"),
    "missing": Form("missing", "✗", "gone", "bad"),
    "changed status": Form("changed status", "✗", "swap", "bad"),
    "inconclusive": Form("inconclusive", "?", "question", "warn"),
    "improved": Form("improved", "▲", "up", "good"),
    "pass": Form("pass", "=", "check"),
    "new": Form("new", "+", "plus"),
    "not measured": Form("not measured", "–", "gone"),
}


def tone(comparison: CellComparison) -> Tone:
    """Of one cell's verdict. Bad is only what fails: a cell that runs now does not, nor one that is allowed to miss."""
    of = FORMS[comparison.verdict].tone
    return "plain" if of == "bad" and not comparison.failing else of


def signed(comparison: CellComparison) -> str:
    """A verdict as sign and word, with what a loss sits in or what would decide: `▼ regression in backward`."""
    words = FORMS[comparison.verdict].signed
    if comparison.verdict == "changed status" and not comparison.failing:
        words = "✓ runs now"
    if comparison.culprit is not None:
        words += f" in {comparison.culprit.name}"
    more = comparison.more_trials
    if comparison.verdict == "inconclusive" and more is not None:
        words += f", {more} more trial{'' if more == 1 else 's'}"
    return words
