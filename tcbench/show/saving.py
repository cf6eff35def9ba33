"""Charts that accompany a command's main output: if one cannot be drawn, only that chart is missing."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tcbench.show.notes import aside


def save_each(drawings: Mapping[Path, Callable[[], Any]], noun: str = "chart") -> list[Path]:
    """Draw each figure and save it under its path. Return the paths that were written.

    If a figure cannot be drawn or saved for any reason, print a note that calls it a `noun` and go on, so that the
    command still shows what it measured."""
    drawn = []
    for path, draw in drawings.items():
        try:
            from tcbench.show.charts.files import save

            save(draw(), path)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            aside(f"note: no {noun}: {reason}")
        else:
            drawn.append(path)
    return drawn
