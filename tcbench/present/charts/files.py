"""Charts as files: PNG, SVG or PDF, the same bytes for the same figure.

Owns the formats. Knows nothing of what a figure shows.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tcbench.core import files
from tcbench.core.errors import TcbenchError
from tcbench.present.notes import aside
from tcbench.present.options import check_picture


def save(figure: Figure, path: Path, remedy: str = "") -> None:
    """PNG, SVG or PDF, as the suffix says; the same figure gives the same bytes, whenever it is written. Makes folders.
    Raises SelectionError for another suffix and StoreError, with the remedy, when the file cannot be written."""
    check_picture(path)
    suffix = path.suffix.lower()
    metadata: dict[str, Any] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
    data = io.BytesIO()
    figure.savefig(data, format=suffix[1:], metadata=metadata)
    files.write(path, data.getvalue(), remedy)


def save_each(drawings: Mapping[Path, Callable[[], Figure]], what: str = "chart") -> list[Path]:
    """Draw each into its file; what hinders one is a note and costs that one only. Those that there are."""
    drawn = []
    for path, draw in drawings.items():
        try:
            save(draw(), path)
        except TcbenchError as error:
            aside(f"note: no {what}: {error}")
        else:
            drawn.append(path)
    return drawn
