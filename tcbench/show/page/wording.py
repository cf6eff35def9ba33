"""Words that several sections of the page write alike."""

from tcbench.analysis.summary import CellSummary
from tcbench.show.verdicts import why_missing

_LONGEST_REASON = 44


def spaced(config: str) -> str:
    """A config as its rungs, so that lines may break between them, but not after a plus: "fp16 + dali"."""
    return kept_together(config.replace("+", " + "))


def kept_together(text: str) -> str:
    """No line breaks after a plus."""
    return text.replace("+ ", "+\u00a0")


def why(summary: CellSummary | None) -> str:
    """Why a cell has no number, in the space of a bar."""
    text = why_missing(summary)
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1].rstrip() + "…"
