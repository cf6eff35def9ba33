"""Charts as files: PNG, SVG or PDF, the same bytes for the same figure.

Owns the formats. Knows nothing of what a figure shows.
"""

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tcbench.core.variables import for_charts
from tcbench.show.options import check_picture
from tcbench.show.streams import STANDARD_OUTPUT, write_file


def save(figure: Figure, path: Path, remedy: str = "") -> None:
    """Write a figure as PNG, SVG or PDF, as the suffix says, and as PNG to standard output. The same figure gives the
    same bytes, whenever it is written. Makes folders. Raises SelectionError for another suffix and StoreError, with the
    remedy, when the file cannot be written."""
    check_picture(path)
    suffix = ".png" if path == STANDARD_OUTPUT else path.suffix.lower()
    metadata: dict[str, Any] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
    data = io.BytesIO()
    with for_charts():
        figure.savefig(data, format=suffix[1:], metadata=metadata)
    write_file(path, data.getvalue(), remedy)
