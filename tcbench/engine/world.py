"""The ranks of a trial, as one of them sees them: processes that train one model together, each on its own batches.

Owns which rank this process is, and how a process has something current. Knows no launcher and no engine; the process
that a launcher started enters its world (`tcbench.rank`), and sessions ask for it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Current(Generic[Value]):
    """What this process uses now; `use` puts another in its place for the length of a with block."""

    def __init__(self, value: Value) -> None:
        self.value = value

    @contextlib.contextmanager
    def use(self, value: Value) -> Iterator[None]:
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


@dataclass(frozen=True)
class World:
    """This process's place among `size` ranks. `local_rank` and `local_size` count those of its host alone. `mpi` is
    their communicator (mpi4py's `Intracomm`), None where there is one rank."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    mpi: Any = None

    def bcast(self, value: Value) -> Value:
        """Rank 0's value on every rank; all wait for it."""
        if self.mpi is None:
            return value
        agreed: Value = self.mpi.bcast(value)
        return agreed

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        if self.mpi is not None:
            self.mpi.Barrier()


ALONE = World()

_current = Current(ALONE)

entered = _current.use
"""While it is held, this process is a rank of that world."""


def current() -> World:
    """The world of this process; ALONE unless it was started as one of many ranks."""
    return _current.value
