"""The ranks of a trial: processes that train one model together, each on its own batches.

A rank's process (`tcbench.rank`) sets its world, and sessions read it. This module knows no launcher and no library
that reduces gradients."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Current(Generic[Value]):
    """A process-wide setting. `use` replaces it while a context lasts."""

    def __init__(self, value: Value) -> None:
        self.value = value

    @contextlib.contextmanager
    def use(self, value: Value) -> Iterator[None]:
        """Replace the setting while the context lasts."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


@dataclass(frozen=True)
class World:
    """The position of this process among `size` ranks. `local_rank` and `local_size` refer to its host only. `mpi` is
    the communicator (mpi4py's `Intracomm`), or None for a single rank."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    mpi: Any = None

    def bcast(self, value: Value) -> Value:
        """Return rank 0's value on every rank. All ranks have to call this."""
        if self.mpi is None:
            return value
        agreed: Value = self.mpi.bcast(value)
        return agreed

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        if self.mpi is not None:
            self.mpi.Barrier()


ALONE = World()

_current = Current(ALONE)

entered = _current.use
"""Make this process a rank of a world while the context lasts."""


def current() -> World:
    """Return the world of this process: ALONE unless it is one of several ranks."""
    return _current.value
