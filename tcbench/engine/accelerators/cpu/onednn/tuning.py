"""Of oneDNN's implementations of a piece of work the fastest here, by a few runs when it is first asked for.

Least times are kept in the user's cache. A few processes that have their processors add to them, and those after them
take what was chosen: they start in less time, and the trials of a cell do the same work in the same way. Where no
process has its processors, the choices of as many are provisional: the next that has replaces them."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tcbench.core import messages
from tcbench.core.cache import Cache, Entry, Key, folder
from tcbench.core.record import BUSY
from tcbench.engine import world
from tcbench.engine.accelerators.cpu.onednn.library import REFERENCE, Engine, Primitive, Unimplemented, version
from tcbench.engine.work import DType, Work
from tcbench.hardware import load, machine

RUNS = 3
"""Timed runs of each in turn, after one that is not; the least counts, since other work on the processor only adds."""
PROCESSES = 3
"""So many add their least times to what is kept; those after them measure nothing. Two, and the one that has met a busy
moment would be half of what is known."""
MARGIN = 0.95
HOPELESS = 1.3
"""A way that has taken so many times as long as the best so far is not run again: on large images most are so."""
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
    `provisional`: by what was measured beside other work."""

    bind: Callable[..., Callable[[], None]]
    name: str
    from_cache: bool = False
    provisional: bool = False


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
    """Least seconds of each way over so many processes, all of which were `beside_others` or none."""

    times: tuple[float, ...]
    processes: int
    beside_others: bool

    def after(self, before: _KeptTimes | None) -> _KeptTimes:
        """This process' times with those that were kept before; what was measured beside others gives way."""
        if before is None or before.beside_others > self.beside_others:
            return self
        if before.beside_others < self.beside_others:
            return before
        return _KeptTimes(tuple(map(min, self.times, before.times)), before.processes + 1, self.beside_others)


def fastest(engine: Engine, work: Work, ways: Sequence[Alternative]) -> Choice:
    """The one that takes the least time on a work's operands. oneDNN's preferred one comes first, and stays unless
    another is faster by more than what a busy machine adds."""
    best = ways[0]
    if len(ways) > 1:
        kept, from_cache = _times(engine, work, ways)
        if min(kept.times) <= MARGIN * kept.times[0]:
            best = ways[int(np.argmin(kept.times))]
        return Choice(best.bind, best.name, from_cache, kept.beside_others)
    return Choice(best.bind, best.name)


def _times(engine: Engine, work: Work, ways: Sequence[Alternative]) -> tuple[_KeptTimes, bool]:
    """The kept times of these ways, and whether they are earlier processes' alone: the first ones add to them."""
    cache = Cache(folder("onednn-v2"), fresh=messages.fresh_autotune())
    names = [way.name for way in ways]
    key: Key = {
        "work": work.key,
        "threads": engine.n_threads,
        "team": engine.team is not None,
        "oneDNN": version() or "",
        "processor": f"{machine.cpu_name()} {machine.processor()}",
    }
    kept = _kept(cache.get(key), names)
    if kept and kept.processes >= PROCESSES and (not kept.beside_others or _beside_others(engine)):
        return kept, True
    known = (math.inf,) * len(ways) if kept is None or kept.beside_others else kept.times
    # Filled: pages that nobody wrote are all the same one, which is always in the cache.
    arrays = [np.full(operand.size, 0, operand.dtype) for operand in work.operands]
    hopeless = HOPELESS * min(known)
    runs = {i: functools.partial(_time, way.bind(*arrays)) for i, way in enumerate(ways) if not known[i] > hopeless}
    with np.errstate(all="ignore"):  # The arrays hold zeros.
        timed = dict(zip(runs, _least(list(runs.values())), strict=True))
    ours = _KeptTimes(tuple(timed.get(i, math.inf) for i in range(len(ways))), 1, _beside_others(engine))

    def merged(entry: Entry | None) -> Entry:
        both = ours.after(_kept(entry, names))
        counts = {"processes": both.processes, "beside_others": both.beside_others}
        return Entry({"ways": names, "seconds": list(both.times), **counts})

    return _kept(cache.merge(key, merged), names) or ours, False


def _beside_others(engine: Engine) -> bool:
    """Whether this process has lost processor time to others since it has the engine, or trains beside other ranks."""
    lost = load.between(engine.began, load.own())
    return world.current().local_size > 1 or (lost is not None and lost.lost >= BUSY)


def _kept(entry: Entry | None, names: Sequence[str]) -> _KeptTimes | None:
    """An entry's times, if it is of the same ways."""
    if entry is None:
        return None
    match entry.content:
        case {"ways": list(ways), "seconds": list(times), "processes": int(n), "beside_others": bool(beside)} if (
            ways == list(names) and len(times) == len(ways) and all(isinstance(time, float) for time in times)
        ):
            return _KeptTimes(tuple(times), n, beside)
    return None


def _least(runs: Sequence[Callable[[], float]]) -> list[float]:
    """The least seconds of each, run in turns."""
    for run in runs:
        run()
    times = [math.inf for _ in runs]
    left: Sequence[int] = range(len(runs))
    for _ in range(RUNS):
        for i in left:
            times[i] = min(times[i], runs[i]())
        left = [i for i in left if times[i] <= HOPELESS * min(times)]
    return times


def _time(launch: Callable[[], None]) -> float:
    """As within a step: the other threads have had nothing to do for a while, and sleep; the second-level cache holds
    something else."""
    _between.fill(0)
    start = time.perf_counter()
    launch()
    return time.perf_counter() - start


_between = np.empty(1 << 20, np.float32)
