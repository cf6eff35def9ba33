"""The errors a user may see. Each message is one line that names the thing, where it stands, what was
expected and, where there is one, the command that mends it."""

import difflib
from collections.abc import Iterable

_MOST_KNOWN = 20
"""Names that an error lists; more are only counted on."""

_ALIKE = 0.7
"""Of `difflib.SequenceMatcher.ratio`: 'nope' is to 'opencv' 0.6, 'fp23' to 'fp32' 0.75."""


def hint(word: str, known: Iterable[str], expected: str = "") -> str:
    """The end of an error about an unknown word: "did you mean 'fp16'?" where one is like it, else what was expected:
    by default one of the known ones."""
    known = list(known)
    for close in difflib.get_close_matches(word, known, n=1, cutoff=_ALIKE):
        return f"did you mean '{close}'?"
    shown = ", ".join(known[:_MOST_KNOWN]) + (", ..." if len(known) > _MOST_KNOWN else "")
    return expected or f"expected one of {shown}"


class TcbenchError(Exception):
    """Something the user can mend. `exit_code` is what the command line ends with."""

    exit_code = 2


class ScenarioError(TcbenchError):
    """A scenario file cannot be read or says something that is not understood."""


class SelectionError(TcbenchError):
    """The command line asks for a config, batch size, device or setting that does not exist."""


class DataError(TcbenchError):
    """The input images are missing, empty or broken."""


class TrainingError(TcbenchError):
    """A config does not train with these settings: its gradients or its loss are not finite."""


class TraceError(TcbenchError):
    """A timeline cannot be read from a file, or a profiler's report cannot be made or converted."""


class StoreError(TcbenchError):
    """Records cannot be written or read."""


class OutputError(TcbenchError):
    """Standard output takes no more, so that what was asked for is not shown."""


class BuildError(TcbenchError):
    """A build that a gate compares cannot be prepared: its revision, its environment or its Python."""


class ClusterError(TcbenchError):
    """The cluster lacks what a job asks for, or its scheduler does not take the job."""


class NotComparableError(TcbenchError):
    """Two sides did not measure the same thing, or have nothing in common."""

    exit_code = 5


class StorageFullError(StoreError):
    """The disk took no more while a run was going on; what was stored before is intact."""

    exit_code = 3


class StorageGoneError(StoreError):
    """The file of a run was removed, replaced or changed while the run went on; its records are kept in another one."""

    exit_code = 3


class OutOfDeviceMemory(MemoryError):
    """A device has too little memory for what a cell needs. That is an answer about the device, not a mistake of the
    user's: the trial's record gets the status `oom` and this message as its reason."""
