"""The report as a file: one name, one suffix, written whole or not at all."""

from pathlib import Path

from tcbench.core import files
from tcbench.core.errors import SelectionError

SUFFIXES = (".html", ".htm")


def check_path(path: Path) -> None:
    """Raises SelectionError unless the file's name ends as a page's does."""
    if path.suffix.lower() not in SUFFIXES:
        raise SelectionError(f"{path}: expected a file name that ends in {' or '.join(SUFFIXES)}")


def beside(path: Path) -> Path:
    """The file for the trials that the page has no room for."""
    return path.with_name(f"{path.stem}-trials.csv")


def save(text: str, path: Path) -> None:
    """Write the page, or what lies beside it; folders are made. A file that was there stays whole until the new one is.

    Raises StoreError when the file cannot be written.
    """
    files.write(path, text.encode(), "name another file with -o")
