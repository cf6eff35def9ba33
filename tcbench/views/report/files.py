"""The report as a file: one name, one suffix, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from tcbench import files
from tcbench.errors import SelectionError

SUFFIXES = (".html", ".htm")


def check_path(path: Path) -> None:
    """Raises SelectionError unless the file's name ends as a page's does."""
    if path.suffix.lower() not in SUFFIXES:
        raise SelectionError(f"{path}: expected a file name that ends in {' or '.join(SUFFIXES)}")


def save(text: str, path: Path) -> None:
    """Write the page; folders are made. A file that was there stays whole until the new one is.

    Raises SelectionError for another suffix and StoreError when the file cannot be written.
    """
    check_path(path)
    files.write(path, text.encode(), "name another file with -o")
