"""Autotuning on the CPU: implementations of an operation are timed when it is first used, and the fastest is chosen.

The times are kept in the user's cache. The first few undisturbed processes add their times, and later ones use the
choice that follows from them. So they start faster, and all trials of a cell use the same implementations. As long as
every process was disturbed by other load, choices are provisional: the times of the first undisturbed process replace
them.

In a gate, each side adds its times once, and both sides choose by all of them (`messages.SIDE`)."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
from tcbench.engine.accelerators.cpu.onednn.team import Team
from tcbench.engine.work import DType, Work
from tcbench.hardware import load, machine

LEAST_ROUNDS, MOST_ROUNDS = 6, 18
SPENT_S = 0.04
"""Rounds continue until they have taken this long, within these limits. A round runs every implementation once."""
MEMORIES = 3
"""Copies of the operands on which implementations are timed in turn. It is chance which pages of an array are huge: one
implementation took 0.9 to 3 ms on one thread with an array of 5 MB."""
MOST_BYTES = 1 << 26
"""Larger operands have a single copy: almost all of their pages are huge, and memory is scarce."""
PROCESSES = 3
"""The number of processes that add their times to the cache; later ones measure nothing. With two, one disturbed
process would be half of the data."""
MARGIN = 0.95
"""A later implementation is chosen over the first only if it takes at most this share of its time, so that two tunings
agree on near ties."""
DROP_FIRST, DROP_LATER = 2.0, 1.3
"""An implementation is dropped if it takes this many times as long as the best: after one round, where another process
may have disturbed it, and after two or more. On large images most are dropped."""
MOST = 2
"""The number of oneDNN's implementations that are considered."""
NUMPY = "numpy"
"""The plan in a record for operations that NumPy computes."""
SLOWER = (*REFERENCE, "nspc_bnorm", "ncsp_bnorm", "x64:gemm")
"""Prefixes of implementations that are plain C++ or that build a matrix of all windows."""


@dataclass(frozen=True)
class Choice:
    """The implementation chosen for an operation."""

    bind: Callable[..., Callable[[], None]]
    """Takes the operation's arrays and returns a function that computes it on them each time it is called."""
    name: str
    """oneDNN's name of the implementation, or NUMPY."""
    from_cache: bool = False
    """Whether the choice follows from times of earlier processes only."""
    provisional: bool = False
    """Whether the times were measured under other load."""
    place: int = 0
    """The index among the implementations that were timed."""


def descriptions(
    engine: Engine, dtype: DType, describe: Callable[[DType], int], *, most: int = MOST
) -> tuple[int, ...]:
    """Return descriptions of up to `most` implementations of an operation in a dtype, oneDNN's preferred one first.

    `describe` returns the description for a dtype. The result ends before the first implementation in SLOWER, unless
    oneDNN prefers that one. If oneDNN has only its reference in a 16-bit dtype, which takes seconds for a convolution,
    the result has implementations in float32, and arrays are converted. Raises Unimplemented if there is none."""
    dtypes: tuple[DType, ...] = (dtype, "float32")
    for computed in dict.fromkeys(dtypes):
        try:
            described = [describe(computed)]
        except Unimplemented:
            continue
        if engine.implementation(described[0]).startswith(REFERENCE) and computed != "float32":
            continue
        while len(described) < most:
            other = describe(computed)
            if not all(engine.advance_implementation(other) for _ in described):
                break
            if engine.implementation(other).startswith(SLOWER):
                break
            described.append(other)
        return tuple(described)
    raise Unimplemented(dtype)


def lazy(name: str, make: Callable[[], Primitive]) -> Choice:
    """Return a choice of a primitive that is created when it is first bound: creation is slow, and few are used."""
    primitive = functools.cache(make)
    return Choice(lambda *arrays: primitive().bind(*arrays), name)


@dataclass(frozen=True)
class _Timings:
    """The seconds that each alternative took, by process. Either all or none were measured under other load."""

    by_process: Mapping[str, tuple[float, ...]]
    """Keys are process numbers, or in a gate the sides."""
    disturbed: bool

    def with_process(self, times_s: tuple[float, ...], disturbed: bool) -> _Timings:
        """Return the timings with another process's. Except in a gate, undisturbed times replace disturbed ones."""
        side = messages.side()
        if disturbed != self.disturbed and not side:
            return self if disturbed else _Timings({"0": times_s}, False)
        return _Timings({**self.by_process, side or str(len(self.by_process)): times_s}, disturbed)

    @property
    def times_s(self) -> tuple[float, ...]:
        """The minimum over processes for each alternative, since other load only adds time."""
        return tuple(map(min, zip(*self.by_process.values(), strict=True)))

    def suffice(self, engine: Engine) -> bool:
        """Return whether this process can choose without measuring.

        In a gate it can if both sides have added their times. Otherwise PROCESSES processes must have added theirs.
        Times under other load suffice only while there is other load now."""
        if messages.side():
            return len(self.by_process) > 1
        return len(self.by_process) >= PROCESSES and (not self.disturbed or _is_disturbed(engine))


def fastest(engine: Engine, work: Work, alternatives: Sequence[Choice]) -> Choice:
    """Return the fastest alternative on operands of this size, or the first one that is about as fast."""
    if len(alternatives) == 1:
        return alternatives[0]
    timings, from_cache = _timings(engine, work, alternatives)
    place = next(place for place, time_s in enumerate(timings.times_s) if MARGIN * time_s <= min(timings.times_s))
    return replace(alternatives[place], from_cache=from_cache, provisional=timings.disturbed, place=place)


def _timings(engine: Engine, work: Work, alternatives: Sequence[Choice]) -> tuple[_Timings, bool]:
    """Return the timings of these alternatives, and whether all come from earlier processes."""
    cache = Cache(folder(messages.CPU_TIMES), fresh=messages.fresh_autotune())
    key: Key = {
        "work": work.key,
        "ways": "; ".join(alternative.name for alternative in alternatives),
        "threads": engine.n_threads,
        "team": isinstance(engine.team, Team),
        "oneDNN": version() or "",
        "instructions": instructions(),
        "processor": f"{machine.cpu_name()} {machine.processor()}",
        "code": source_digest(cpu) if messages.side() else "",
    }
    cached = _from_entry(cache.get(key))
    if cached and cached.suffice(engine):
        return cached, True
    # The arrays are written, since pages never written all map to one zero page, which stays in the cache.
    memories = [[np.full(operand.size, 0, operand.dtype) for operand in work.operands]]
    if sum(array.nbytes for array in memories[0]) <= MOST_BYTES:
        memories += [[array.copy() for array in memories[0]] for _ in range(MEMORIES - 1)]
    with np.errstate(all="ignore"):  # zeros as operands lead to NaN
        times_s = _times_s(
            [[functools.partial(_time, engine, a.bind(*arrays)) for arrays in memories] for a in alternatives]
        )
    disturbed = _is_disturbed(engine)

    def merged(entry: Entry | None) -> Entry:
        before = _from_entry(entry) or _Timings({}, disturbed)
        after = before.with_process(times_s, disturbed)
        return Entry({"seconds": dict(after.by_process), "beside_others": after.disturbed})

    return _from_entry(cache.merge(key, merged)) or _Timings({"": times_s}, disturbed), False


def _is_disturbed(engine: Engine) -> bool:
    """Return whether others took a share of CPU time of at least BUSY since `engine` began, or ranks share the host."""
    lost = load.between(engine.began, load.own_counts())
    return world.current().local_size > 1 or (lost is not None and lost.lost >= BUSY)


def _from_entry(entry: Entry | None) -> _Timings | None:
    """Return the timings that a cache entry holds, or None if there are none or it has another format."""
    match entry.content if entry else None:
        case {"seconds": dict(by_process), "beside_others": bool(disturbed)} if by_process:
            return _Timings({name: tuple(times) for name, times in by_process.items()}, disturbed)
    return None


def _times_s(runs: Sequence[Sequence[Callable[[], float]]]) -> tuple[float, ...]:
    """Return the seconds of each alternative: the minimum over rounds for each copy of the operands, then the mean.

    `runs` has one function per alternative and copy, which returns the seconds of a launch. Alternatives take turns, so
    changes of the clock frequency affect all of them. The minimum removes disturbance by other processes."""
    for run, *_ in runs:
        run()
    began_s, least_s = time.perf_counter(), [[math.inf] * len(by_memory) for by_memory in runs]
    remaining, rounds = list(range(len(runs))), 0
    while len(remaining) > 1 and rounds < MOST_ROUNDS:
        if rounds >= LEAST_ROUNDS and time.perf_counter() - began_s >= SPENT_S:
            break
        memory = rounds % len(runs[0])
        for place in remaining:
            least_s[place][memory] = min(least_s[place][memory], runs[place][memory]())
        rounds += 1
        limit_s = (DROP_LATER if rounds > 1 else DROP_FIRST) * min(map(min, least_s))
        remaining = [place for place in remaining if min(least_s[place]) <= limit_s]
    return tuple(statistics.fmean(time_s for time_s in by_memory if time_s < math.inf) for by_memory in least_s)


def _time(engine: Engine, launch: Callable[[], None]) -> float:
    """Return the seconds of a launch under the conditions of a training step: the team's other threads sleep, and the
    second-level caches hold other data."""
    threads.run(lambda row: row.fill(0), list(_cache_filler(engine.n_threads)))
    start_s = time.perf_counter()
    launch()
    return time.perf_counter() - start_s


@functools.cache
def _cache_filler(n_threads: int) -> threads.Array:
    """Return an array with 4 MiB for each thread, which replaces the contents of second-level caches."""
    return np.empty((n_threads, 1 << 20), np.float32)
