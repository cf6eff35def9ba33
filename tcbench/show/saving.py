"""Charts that a command draws beside its answer: a chart that cannot be drawn costs only itself."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tcbench.show.notes import aside


def save_each(drawings: Mapping[Path, Callable[[], Any]], what: str = "chart") -> list[Path]:
    """Draw each figure into its file, and return the files. Whatever hinders a figure, also that matplotlib does not
    load, is a note and costs that figure only: what was measured is shown all the same."""
    drawn = []
    for path, draw in drawings.items():
        try:
            from tcbench.show.charts.files import save

            save(draw(), path)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            aside(f"note: no {what}: {reason}")
        else:
            drawn.append(path)
    return drawn
