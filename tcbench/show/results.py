"""The results that a command reads, with notes on standard error; and the place of the file that it writes."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tcbench.run import inputs
from tcbench.run.inputs import Accepted, Results
from tcbench.show.notes import aside


def newest(out: Path, *, says: bool = False) -> Path:
    """Return the newest run under a folder, as `inputs.newest` finds it; notes go to standard error."""
    return inputs.newest(out, aside, says=says)


def newest_timeline(out: Path) -> Path:
    """Return the newest profile under a folder, and say on standard error which it is. Raises SelectionError."""
    return inputs.newest_timeline(out, aside)


def read_files(paths: Sequence[Path]) -> Results:
    """Read the current records of files and folders; notes go to standard error. Raises StoreError."""
    return inputs.read_files(paths, aside)


def read_results(names: Iterable[str] | None, out: Path, accepts: Accepted = "records") -> Results:
    """Read what a command line names, as `inputs.read_results`; notes go to standard error. Raises TcbenchError."""
    return inputs.read_results(names, out, accepts, aside)


def place(output: Path | None, of: Sequence[Path], name: str) -> Path:
    """The file of a picture or a page: `output`, or beside the files that it is `of`, or in the working folder, after a
    note that says so, where those are of several folders or theirs takes no files."""
    if output is not None:
        return output
    folders = list(dict.fromkeys(path if path.is_dir() else path.parent for path in of))
    if len(folders) == 1 and os.access(folders[0], os.W_OK):
        run = "" if len(of) > 1 or of[0].is_dir() else of[0].name.partition(".")[0] + "-"
        return folders[0] / f"{run}{name}"
    why = "the results are of several folders" if len(folders) > 1 else f"{folders[0]} cannot be written"
    aside(f"note: {why}, so {name} is in the working folder; -o names another file")
    return Path(name)
