"""The ranks of a trial, as one of them sees them: processes that train one model together, each on its own
batches.

Owns which rank this process is. Knows no launcher and no engine; the process that a launcher started enters its world
(`tcbench.rank`), and sessions ask for it.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


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

_current = ALONE


def current() -> World:
    """The world of this process; ALONE unless it was started as one of many ranks."""
    return _current


@contextlib.contextmanager
def entered(world: World) -> Iterator[None]:
    """While it is held, this process is a rank of `world`."""
    global _current
    before, _current = _current, world
    try:
        yield
    finally:
        _current = before
