"""Errors that users may see.

Each message is one line: what is wrong, where, what was expected and, if there is one, the command that fixes it."""

import difflib
from collections.abc import Iterable

_MAX_CHOICES = 20
"""The number of choices that an error message lists at most."""

_MIN_SIMILARITY = 0.7
"""The least `difflib.SequenceMatcher.ratio` of a suggestion: 'nope' and 'opencv' have 0.6, 'fp23' and 'fp32' 0.75."""


def hint(word: str, choices: Iterable[str], expected: str = "") -> str:
    """Return the end of an error message about an unknown word: "did you mean 'fp16'?" if a choice is similar to it,
    else `expected`, which defaults to a list of the choices."""
    choices = list(choices)
    for close in difflib.get_close_matches(word, choices, n=1, cutoff=_MIN_SIMILARITY):
        return f"did you mean '{close}'?"
    shown = ", ".join(choices[:_MAX_CHOICES]) + (", ..." if len(choices) > _MAX_CHOICES else "")
    return expected or f"expected one of {shown}"


class TcbenchError(Exception):
    """An error that the user can fix. `exit_code` is the exit code of the command."""

    exit_code = 2


class ScenarioError(TcbenchError):
    """A scenario file cannot be read or is not valid."""


class SelectionError(TcbenchError):
    """The command line names a config, batch size, device or setting that does not exist."""


class DataError(TcbenchError):
    """The input images are missing, empty or broken."""


class TrainingError(TcbenchError):
    """A config does not train with these settings: its gradients or its loss are not finite."""


class TraceError(TcbenchError):
    """A timeline cannot be read from a file, or a profiler's report cannot be made or converted."""


class StoreError(TcbenchError):
    """Records cannot be written or read."""


class OutputError(TcbenchError):
    """Standard output cannot be written to, so that the output is incomplete."""


class BuildError(TcbenchError):
    """A build for `gate` cannot be prepared: its revision, its environment or its Python is not usable."""


class ClusterError(TcbenchError):
    """The cluster lacks a resource that a job needs, or its scheduler rejects the job."""


class NotComparableError(TcbenchError):
    """Two sides did not measure the same thing, or have nothing in common."""

    exit_code = 5


class StorageFullError(StoreError):
    """The disk became full during a run. Records that were stored before are intact."""

    exit_code = 3


class StorageGoneError(StoreError):
    """A run's file was removed, replaced or changed during the run. Its records are kept in another file."""

    exit_code = 3


class OutOfDeviceMemory(MemoryError):
    """A cell does not fit the device's memory. This is a finding about the device, not a user error: the trial's record
    gets the status `oom` and this message as its reason."""
