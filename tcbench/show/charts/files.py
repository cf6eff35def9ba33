"""Charts as PNG, SVG or PDF files."""

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tcbench.core.variables import for_charts
from tcbench.show.options import check_picture
from tcbench.show.streams import STANDARD_OUTPUT, write_file


def save(figure: Figure, path: Path, remedy: str = "") -> None:
    """Write a figure as PNG, SVG or PDF, by the suffix, or as PNG to standard output.

    Missing folders are made. The same figure always gives the same bytes. Raises SelectionError for another suffix, and
    StoreError with the remedy if the file cannot be written."""
    check_picture(path)
    suffix = ".png" if path == STANDARD_OUTPUT else path.suffix.lower()
    metadata: dict[str, Any] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
    buffer = io.BytesIO()
    with for_charts():
        figure.savefig(buffer, format=suffix[1:], metadata=metadata)
    write_file(path, buffer.getvalue(), remedy)
