"""The words that say which results were measured while the machine did something else."""

from collections.abc import Sequence

from tcbench.analysis.summary import CellSummary
from tcbench.present.format import counted


def busy_line(summaries: Sequence[CellSummary]) -> str | None:
    """A busy machine's share of these cells, in words; None where it had none of note."""
    lost = [summary.lost for summary in summaries if summary.busy]
    if not lost:
        return None
    cells = f"{len(lost)} of {counted(len(summaries), 'cell')}" if len(lost) < len(summaries) else "every cell"
    return f"busy machine: other work had up to {max(lost):.0%} of the processor time of {cells}"
