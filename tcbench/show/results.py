"""Inputs of a command, with notes on standard error, and the path of the file that it writes."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tcbench.run import inputs
from tcbench.run.inputs import Accepted, Results
from tcbench.show.notes import aside


def newest(out: Path, *, announce: bool = False) -> Path:
    """Return the newest run under a folder (`inputs.newest`), and print notes, with `announce` also its name."""
    return inputs.newest(out, aside, announce=announce)


def newest_timeline(out: Path) -> Path:
    """Return the newest profile under a folder, and name it on standard error. Raises SelectionError."""
    return inputs.newest_timeline(out, aside)


def read_files(paths: Sequence[Path]) -> Results:
    """Read the current records of files and folders, and print notes on standard error. Raises StoreError."""
    return inputs.read_files(paths, aside)


def read_results(names: Iterable[str] | None, out: Path, accepts: Accepted = "records") -> Results:
    """Read the results that a command line names (`inputs.read_results`), and print notes on standard error."""
    return inputs.read_results(names, out, accepts, aside)


def output_path(output: Path | None, sources: Sequence[Path], name: str) -> Path:
    """Return the path of a picture or a page: `output`, or if that is None, `name` next to its `sources`.

    If the sources are in several folders or in a read-only one, return a path in the working folder and print a note.
    """
    if output is not None:
        return output
    folders = list(dict.fromkeys(path if path.is_dir() else path.parent for path in sources))
    if len(folders) == 1 and os.access(folders[0], os.W_OK):
        run = "" if len(sources) > 1 or sources[0].is_dir() else sources[0].name.partition(".")[0] + "-"
        return folders[0] / f"{run}{name}"
    why = "the results are from several folders" if len(folders) > 1 else f"{folders[0]} is not writable"
    aside(f"note: {why}, so {name} is written to the working folder; choose another file with -o")
    return Path(name)
