"""Texts that several sections of the page share."""

from tcbench.analysis.summary import CellSummary
from tcbench.show.verdicts import why_missing

_LONGEST_REASON = 44


def spaced(config: str) -> str:
    """Return a config with spaces around "+", so that lines break between rungs: "fp16 + dali"."""
    return kept_together(config.replace("+", " + "))


def kept_together(text: str) -> str:
    """Replace the space after "+" by one at which no line breaks."""
    return text.replace("+ ", "+\u00a0")


def short_reason(summary: CellSummary | None) -> str:
    """Say why a cell has no number, in a few words that fit into a bar."""
    text = why_missing(summary)
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1].rstrip() + "…"
