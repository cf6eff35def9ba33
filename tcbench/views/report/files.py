"""The report as a file: one name, one suffix, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tcbench.errors import SelectionError, StoreError

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
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise StoreError(f"{path}: cannot be written (a folder has this name); name another file with -o")
        with contextlib.ExitStack() as stack:
            stack.callback(draft.unlink, missing_ok=True)
            draft.write_text(text, encoding="utf-8", newline="\n")
            draft.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); name another file with -o") from None
