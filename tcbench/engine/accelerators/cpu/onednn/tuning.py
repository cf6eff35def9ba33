"""The fastest way to do a piece of work here, chosen by timing the ways when the work is first asked for.

The times are kept in the user's cache. The first few processes that have their processors add to them, and later ones
take what was chosen: they start in less time, and the trials of a cell do the same work in the same way. While no
process has its processors, the choices of as many are provisional: the next that has replaces them.

In a gate both sides add their times once, and both choose by these (`messages.SIDE`)."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tcbench.core import messages
from tcbench.core.cache import Cache, Entry, Key, folder, source_digest
from tcbench.core.record import BUSY
from tcbench.engine import world
from tcbench.engine.accelerators import cpu
from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.onednn.library import (
    REFERENCE,
    Engine,
    Primitive,
    Unimplemented,
    instructions,
    version,
)
from tcbench.engine.work import DType, Work
from tcbench.hardware import load, machine

LEAST_ROUNDS, MOST_ROUNDS = 6, 18
SPENT_S = 0.04
"""Rounds of a work go on until they have taken this long. In each round every way runs once."""
MEMORIES = 3
"""Sets of operands on which the ways are timed in turn. Which pages of an array are huge is chance: a way on one thread
took 0.9 to 3 ms by it, on an array of 5 MB."""
MOST_BYTES = 1 << 26
"""Operands that are larger are there once: almost all of their pages are huge, and memory is scarce."""
PROCESSES = 3
"""This many processes add their times to what is kept; later ones measure nothing. With two, one that met a busy moment
would be half of what is known."""
MARGIN = 0.95
"""The first way stays unless another takes at most this share of its time: two tunings then agree on near ties."""
FAR, HOPELESS = 2.0, 1.3
"""A way is dropped whose first look takes FAR times as long as the best, or whose least of two or more takes HOPELESS
times as long: on large images most are so. A single look may have met another process."""
MOST = 2
"""Implementations that are considered."""
NUMPY = "numpy"
"""In a record's plans: work that NumPy does."""
SLOWER = (*REFERENCE, "nspc_bnorm", "ncsp_bnorm", "x64:gemm")
"""Implementations in plain C++, or by way of a matrix of all windows."""


@dataclass(frozen=True)
class Choice:
    """The way chosen for a piece of work. `bind`: of its arrays the launch on them, to be made as often as one likes.
    `name`: oneDNN's of the implementation, or NUMPY. `from_cache`: by what earlier processes measured.
    `provisional`: by what was measured beside other work. `place`: its place among the ways that were timed."""

    bind: Callable[..., Callable[[], None]]
    name: str
    from_cache: bool = False
    provisional: bool = False
    place: int = 0


def descriptions(
    engine: Engine, dtype: DType, describe: Callable[[DType], int], *, most: int = MOST
) -> tuple[int, ...]:
    """oneDNN's implementations of what `describe` describes in a dtype, its preferred first, without the slower kind
    where it has others. Where it has none in a 16-bit dtype but its reference, which takes seconds for a convolution,
    those in float32, around which arrays are converted. Raises Unimplemented where there is none at all."""
    either: tuple[DType, ...] = (dtype, "float32")
    for wanted in dict.fromkeys(either):
        try:
            described = [describe(wanted)]
        except Unimplemented:
            continue
        if engine.implementation(described[0]).startswith(REFERENCE) and wanted != "float32":
            continue
        while len(described) < most:
            other = describe(wanted)
            if not all(engine.other_implementation(other) for _ in described):
                break
            if engine.implementation(other).startswith(SLOWER):
                break
            described.append(other)
        return tuple(described)
    raise Unimplemented(dtype)


@dataclass(frozen=True)
class Unmade:
    """A primitive by its name, which is made when it is first asked for: of seven that are described one is taken, and
    to make it takes longer than to describe it."""

    name: str
    make: Callable[[], Primitive]

    @functools.cached_property
    def bind(self) -> Callable[..., Callable[[], None]]:
        return self.make().bind


Alternative = Choice | Unmade
"""A way to do a piece of work, with its `name` and `bind`."""


@dataclass(frozen=True)
class _KeptTimes:
    """Seconds of each way by process; all were measured `beside_others` or none. A process is named by its number, or
    in a gate by its side."""

    by_process: Mapping[str, tuple[float, ...]]
    beside_others: bool

    def with_process(self, times_s: tuple[float, ...], beside_others: bool) -> _KeptTimes:
        """Return the times with another process' added; what was measured beside others gives way."""
        side = messages.side()
        if beside_others != self.beside_others and not side:
            return self if beside_others else _KeptTimes({"0": times_s}, False)
        return _KeptTimes({**self.by_process, side or str(len(self.by_process)): times_s}, beside_others)

    @property
    def times_s(self) -> tuple[float, ...]:
        """The least over processes, since other work on the processor only adds."""
        return tuple(map(min, zip(*self.by_process.values(), strict=True)))

    def is_enough(self, engine: Engine) -> bool:
        """Whether a process takes what was chosen: in a gate once both sides have added their times."""
        if messages.side():
            return len(self.by_process) > 1
        return len(self.by_process) >= PROCESSES and (not self.beside_others or _beside_others(engine))


def fastest(engine: Engine, work: Work, ways: Sequence[Alternative]) -> Choice:
    """Return the way that takes the least time on a work's operands, or the first that is about as fast: oneDNN's
    preferred one comes first."""
    if len(ways) == 1:
        return Choice(ways[0].bind, ways[0].name)
    kept, from_cache = _kept_times(engine, work, ways)
    place = next(place for place, time_s in enumerate(kept.times_s) if MARGIN * time_s <= min(kept.times_s))
    return Choice(ways[place].bind, ways[place].name, from_cache, kept.beside_others, place)


def _kept_times(engine: Engine, work: Work, ways: Sequence[Alternative]) -> tuple[_KeptTimes, bool]:
    """Return the times of these ways, and whether all are earlier processes'."""
    cache = Cache(folder(messages.CPU_TIMES), fresh=messages.fresh_autotune())
    key: Key = {
        "work": work.key,
        "ways": "; ".join(way.name for way in ways),
        "threads": engine.n_threads,
        "team": engine.team is not None,
        "oneDNN": version() or "",
        "instructions": instructions(),
        "processor": f"{machine.cpu_name()} {machine.processor()}",
        "code": source_digest(cpu) if messages.side() else "",
    }
    kept = _from_entry(cache.get(key))
    if kept and kept.is_enough(engine):
        return kept, True
    # Filled: pages that nobody wrote are all the same one, which is always in the cache.
    memories = [[np.full(operand.size, 0, operand.dtype) for operand in work.operands]]
    if sum(array.nbytes for array in memories[0]) <= MOST_BYTES:
        memories += [[array.copy() for array in memories[0]] for _ in range(MEMORIES - 1)]
    with np.errstate(all="ignore"):  # The arrays hold zeros.
        times_s = _times_s(
            [[functools.partial(_time, engine, way.bind(*arrays)) for arrays in memories] for way in ways]
        )
    beside_others = _beside_others(engine)

    def merged(entry: Entry | None) -> Entry:
        before = _from_entry(entry) or _KeptTimes({}, beside_others)
        after = before.with_process(times_s, beside_others)
        return Entry({"seconds": dict(after.by_process), "beside_others": after.beside_others})

    return _from_entry(cache.merge(key, merged)) or _KeptTimes({"": times_s}, beside_others), False


def _beside_others(engine: Engine) -> bool:
    """Whether this process has lost processor time to others since it has the engine, or trains beside other ranks."""
    lost = load.between(engine.began, load.own_counts())
    return world.current().local_size > 1 or (lost is not None and lost.lost >= BUSY)


def _from_entry(entry: Entry | None) -> _KeptTimes | None:
    """Return the times of an entry that is understood."""
    match entry.content if entry else None:
        case {"seconds": dict(by_process), "beside_others": bool(beside)} if by_process:
            return _KeptTimes({name: tuple(times) for name, times in by_process.items()}, beside)
    return None


def _times_s(runs: Sequence[Sequence[Callable[[], float]]]) -> tuple[float, ...]:
    """Return the seconds of each way, whose runs are on different memory: the mean over that of the least look.

    All run in turns, so that a processor whose speed changes does so for all. Other processes leave one look of several
    alone.
    """
    for run, *_ in runs:
        run()
    began_s, least_s = time.perf_counter(), [[math.inf] * len(way) for way in runs]
    left, rounds = list(range(len(runs))), 0
    while len(left) > 1 and rounds < MOST_ROUNDS:
        if rounds >= LEAST_ROUNDS and time.perf_counter() - began_s >= SPENT_S:
            break
        memory = rounds % len(runs[0])
        for place in left:
            least_s[place][memory] = min(least_s[place][memory], runs[place][memory]())
        rounds += 1
        most_s = (HOPELESS if rounds > 1 else FAR) * min(map(min, least_s))
        left = [place for place in left if min(least_s[place]) <= most_s]
    return tuple(statistics.fmean(time_s for time_s in way if time_s < math.inf) for way in least_s)


def _time(engine: Engine, launch: Callable[[], None]) -> float:
    """Return the seconds of a launch as within a step: the other threads have had nothing to do for a while, and sleep;
    every core's second-level cache holds something else."""
    threads.run(lambda part: part.fill(0), list(_between(engine.n_threads)))
    start_s = time.perf_counter()
    launch()
    return time.perf_counter() - start_s


@functools.cache
def _between(n_threads: int) -> threads.Array:
    return np.empty((n_threads, 1 << 20), np.float32)
