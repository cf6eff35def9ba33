"""The versions of CUDA and of its libraries that serve a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServedVersions:
    """The versions of some software that serve a GPU: from `first` (None: unknown) to `last` (None: the newest)."""

    name: str
    first: str | None
    last: str | None


@dataclass(frozen=True)
class Support:
    """The software that serves a GPU, and the extra that installs the newest of it; None where none does."""

    software: tuple[ServedVersions, ...]
    extra: str | None
