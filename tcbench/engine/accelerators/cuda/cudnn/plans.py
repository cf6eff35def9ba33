"""Plans of cuDNN's graphs: searching, timing, caching, and running them on bare addresses.

`PlanFacts` describes a chosen plan and `NoPlan` the lack of one; forecasts, records and the cache share them. `Plans`
belongs to one GPU and one cuDNN handle."""

import contextlib
import ctypes
import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

from tcbench.core import messages
from tcbench.core.cache import Cache, Entry, Key, folder, source_digest
from tcbench.engine.accelerators import out_of_memory
from tcbench.engine.accelerators.cuda import cudnn
from tcbench.engine.accelerators.cuda.cudnn import autotune, graphs, libraries
from tcbench.engine.accelerators.cuda.cudnn.autotune import CupyWorkbench, PlanTime
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuProperties

_LOG = logging.getLogger(__name__)
_MIB = 1 << 20
_DESELECTED = "Deselecting"
_REQUIRES = re.compile(r"workspace violation\. Requires (\d+)")
_BUILT = "built-plans-v2"
_NOT_COMPILED = "CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED"

PRECOMPILED_TIMED = 12
"""Autotuning times at most this many precompiled plans, in the heuristic's order. On an H100 a convolution has 40, all
of one engine."""
RUNTIME_COMPILED_TIMED = 2
"""Autotuning times this many runtime-compiled plans per minute of its budget, and at least this many. cuDNN takes about
half a second to compile one, and offers about thirty for a batch normalisation."""

WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Environment variables that keep processes which build plans from a GPU's properties away from the GPU."""

TRIALS_PER_ENTRY = 2
"""Once this many trials have died while tuning the same plans built ahead, later trials build their own plans."""


def compiled_timed(budget_s: float) -> float:
    """Return how many runtime-compiled plans of an operation a trial with this tuning budget times."""
    return RUNTIME_COMPILED_TIMED * max(1.0, budget_s / 60)


def plan_cache(fresh: bool = False) -> Cache:
    """Return the cache of plans that this user's runs and forecasts share; `fresh` ignores its present entries."""
    return Cache.for_code(messages.GPU_PLANS, fresh=fresh)


def built_cache() -> Cache:
    """Return the cache of plans that were built ahead of trials (`tcbench.engine.accelerators.cuda.cudnn.ahead`)."""
    return Cache.for_code(_BUILT)


def built_folder() -> Path:
    """Return the folder of plans that were built ahead. `built_cache` avoids it if other users can write there."""
    return folder(_BUILT)


@dataclass(unsafe_hash=True)
class NoPlan(Exception):
    """The answer that cuDNN cannot do an operation. `reason` is one line.

    `lasting`: whether to cache the answer. It is false if cuDNN offers plans but fails to build them, which a repaired
    NVRTC, driver or GPU may change."""

    reason: str
    lasting: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class PlanFacts:
    """The plan chosen for an operation.

    - `plan`: cuDNN's tag for its engine and knobs; `place`: its place among the `offered` plans of the heuristic.
    - `timed`: autotuning's times in the heuristic's order; `left_out`: the number of usable plans that were not timed.
    - `cut`: whether some were left out because `budget_s`, the trial's tuning time for all works, ran out.
    - `sides`: the sides of a gate whose times are in `timed`; `ahead`: how many timed plans were built ahead."""

    plan: str
    workspace_bytes: int
    place: int
    offered: int
    timed: tuple[PlanTime, ...] = ()
    left_out: int = 0
    budget_s: float = 0.0
    cut: bool = False
    sides: tuple[str, ...] = ()
    ahead: int = 0
    from_cache: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class PlanCandidate:
    """A plan within the workspace limit: built, or timed by an earlier process (`time_s`). `place`: its place in the
    heuristic's order."""

    place: int
    plan: str
    workspace_bytes: int
    time_s: float | None = None


@dataclass(frozen=True)
class BuiltPlan:
    """A plan that another process built. `data`: serialized; `graph`: restored on this GPU."""

    workspace_bytes: int
    data: bytes
    graph: Any = None


# -- finding a plan: the same with a GPU and without ---------------------------------------------------------------


class Search:
    """A search through the plans that cuDNN's heuristic offers for an operation, which builds plans one at a time.

    Plans in `built` are not built again. Plans over the workspace limit are rejected: by cuDNN before building if the
    engine knows its workspace, otherwise here after building. Raises NoPlan if cuDNN has no engine for the work."""

    def __init__(
        self,
        work: Work,
        target: dict[str, Any],
        sm: int,
        workspace_bytes: int,
        built: Mapping[str, BuiltPlan] = MappingProxyType({}),
    ) -> None:
        self._cudnn = cudnn = libraries.frontend()
        self._work, self._sm, self._limit = work, sm, workspace_bytes
        self.built = built
        try:
            self.graph = graphs.build_graph(work, target, sm)
            self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        except cudnn.cudnnGraphNotSupportedError as error:
            _LOG.debug("%s: %s", work.key, error)
            raise NoPlan(self._message("has no plan")) from None
        notes = graphs.deselected_notes(work)
        if notes:
            self.graph.deselect_numeric_notes([getattr(cudnn.numerical_note, note) for note in notes])
        self.graph.deselect_workspace_greater_than(workspace_bytes)
        self.offered = int(self.graph.get_execution_plan_count())
        self._too_large: list[int] = []
        self._failures: list[str] = []
        self._memory_ran_out: Exception | None = None

    def candidates(self) -> Iterator[PlanCandidate]:
        """Yield the plans that build and fit, each once, in the heuristic's order."""
        built = (self._build(place, plan) for plan, place in self._places().items())
        return (candidate for candidate in built if candidate is not None)

    def shortlist(
        self, timed: Mapping[str, PlanTime], has_time: Callable[[], bool], compiled_timed: float
    ) -> tuple[list[PlanCandidate], int, bool]:
        """Return autotuning's candidates, the number of other usable plans, and whether time cut the list short.

        Takes plans in the heuristic's order, up to PRECOMPILED_TIMED precompiled and `compiled_timed` runtime-compiled
        ones. The first fitting plan of either kind is always taken, others while `has_time()`. Plans in `timed` are not
        built. Plans in `built` need no compiling, so all are candidates, whatever `compiled_timed` says."""
        places, refused, cut = self._places(), 0, False
        candidates: list[PlanCandidate] = []
        remaining: dict[bool, float] = {False: PRECOMPILED_TIMED, True: compiled_timed}
        begun = set()
        for plan, place in places.items():
            compiled = self._is_runtime_compiled(place)
            if remaining[False] < 1:
                break
            if remaining[compiled] < 1 and plan not in self.built:
                continue
            candidate: PlanCandidate | None
            if plan in timed:
                candidate = PlanCandidate(place, plan, timed[plan].workspace_bytes, timed[plan].time_s)
            elif plan not in self.built and compiled in begun and not has_time():
                cut = True
                remaining[compiled] -= 1
                continue
            else:
                candidate = self._build(place, plan)
            if candidate is None:
                refused += 1
                continue
            begun.add(compiled)
            remaining[compiled] -= 1
            candidates.append(candidate)
        return candidates, len(places) - refused - len(candidates), cut

    def _places(self) -> dict[str, int]:
        """Return each plan's first place in the heuristic's order, which may repeat plans."""
        places: dict[str, int] = {}
        for place in range(self.offered):
            places.setdefault(str(self.graph.get_plan_name_at_index(place)), place)
        return places

    def first(self, *, build: bool = True) -> PlanCandidate:
        """Return the first fitting plan in the heuristic's order. Raises NoPlan.

        Without `build`, runtime-compiled plans are not built: cuDNN already accepted their configuration and knows
        their workspace. Checked with 388 such plans for four GPUs: all built, with that workspace."""
        for plan, place in self._places().items():
            if not build:
                # A limit of -1 makes cuDNN refuse the plan before building it, with its workspace in the error.
                self.graph.deselect_workspace_greater_than(-1 if self._is_runtime_compiled(place) else self._limit)
            candidate = self._build(place, plan)
            if candidate is not None:
                return candidate
        raise self.none_fits()

    def select(self, chosen: PlanCandidate | PlanFacts) -> None:
        """Select the plan to execute and serialize; build it if this search has not."""
        self.graph.build_plan_at_index(chosen.place)

    def compiled(self, most: float) -> dict[str, BuiltPlan]:
        """Build the runtime-compiled plans that autotuning would time, at most `most`; return them by tag. Raises the
        reason if none builds."""
        built: dict[str, BuiltPlan] = {}
        precompiled = 0
        for plan, place in self._places().items():
            if not self._is_runtime_compiled(place):
                precompiled += 1
            elif len(built) + 1 <= most and (candidate := self._build(place, plan)) and (data := self.serialize()):
                built[plan] = BuiltPlan(candidate.workspace_bytes, data)
            if precompiled == PRECOMPILED_TIMED:
                break
        if self._failures and not built:
            raise self.none_fits()
        return built

    def serialize(self) -> bytes:
        """Return the selected plan's bytes; empty if its engine does not support serialization."""
        try:
            return bytes(self.graph.serialize(as_bytes=True))
        except RuntimeError as error:
            _LOG.debug("%s: cannot be serialized: %s", self._work.key, error)
            return b""

    def none_fits(self) -> Exception:
        """Return why there was no candidate: a NoPlan, or cuDNN's own error if the GPU ran out of memory."""
        if self._memory_ran_out is not None:
            return self._memory_ran_out
        limit = f"a workspace of {self._limit / _MIB:.0f} MiB"
        if self._too_large:
            least = f"the smallest needs {min(self._too_large) / _MIB:.0f} MiB"
            return NoPlan(self._message(f"has no plan that fits in {limit} ({least})"))
        if self._failures or not graphs.deselected_notes(self._work):
            reason = self._message("has no plan that can be built") + _cause(self._failures)
            return NoPlan(reason, lasting=not self._failures)
        return NoPlan(self._message("has no plan that computes in float32"))

    def _build(self, place: int, plan: str) -> PlanCandidate | None:
        """Build a plan, and return it as a candidate; None if it cannot be built within the workspace limit."""
        if plan in self.built:
            return PlanCandidate(place, plan, self.built[plan].workspace_bytes)
        try:
            self.graph.build_plan_at_index(place)
            workspace_bytes = int(self.graph.get_workspace_size_plan_at_index(place))
        except (RuntimeError, self._cudnn.cudnnGraphNotSupportedError) as error:
            required = _REQUIRES.search(str(error))
            if required and int(required[1]) <= self._limit:  # refused only because of the limit of -1 in `first`
                return PlanCandidate(place, plan, int(required[1]))
            if required:
                self._too_large.append(int(required[1]))
            elif _DESELECTED not in str(error):
                _LOG.debug("%s: plan %s does not build: %s", self._work.key, plan, error)
                self._failures.append(" ".join(str(error).split()))
                if out_of_memory.from_error(error) is not None:
                    self._memory_ran_out = error
            return None
        if workspace_bytes > self._limit:
            self._too_large.append(workspace_bytes)
            return None
        return PlanCandidate(place, plan, workspace_bytes)

    def _is_runtime_compiled(self, place: int) -> bool:
        notes = self.graph.get_behavior_notes_for_plan_at_index(place)
        return self._cudnn.behavior_note.RUNTIME_COMPILATION in notes

    def _message(self, problem: str) -> str:
        """Return an error message about this operation on this GPU. `problem` is its verb, such as "has no plan"."""

        work: Any = self._work
        shape: Any = work.conv if hasattr(work, "conv") else work.norm
        gpu = f"compute capability {self._sm // 10}.{self._sm % 10}"
        return f"cuDNN {libraries.version()} {problem} for {work.name} {shape.layout} {shape.dtype} on {gpu}"


def _cause(failures: list[str]) -> str:
    """Return why plans did not build, as the end of a message."""
    if any(_NOT_COMPILED in failure for failure in failures):
        return f": NVRTC {libraries.nvrtc_version()} fails to compile cuDNN's kernels (check with `tcbench doctor`)"
    return f": {failures[0][:300]}" if failures else ""


# -- cache entries -------------------------------------------------------------------------------------------------


def cache_key(
    work: Work, gpu: GpuProperties, workspace_bytes: int, *, autotuned: bool, present: bool, built: bool = True
) -> Key:
    """Return the cache key of a choice of plan: everything that the choice depends on.

    `present`: whether the GPU itself was used. `built`: whether the plan was built rather than predicted."""
    return {
        "work": work.key,
        "gpu": gpu.name,
        "sm": gpu.sm,
        "multiprocessors": gpu.multiprocessors,
        "workspace_bytes": workspace_bytes,
        "autotuned": autotuned,
        "present": present,
        "built": built,
        "timed": f"{PRECOMPILED_TIMED} and {RUNTIME_COMPILED_TIMED} a minute" if autotuned else "",
        "cudnn": libraries.version(),
        "nvrtc": libraries.nvrtc_version(),
        "frontend": libraries.frontend_version(),
    }


def built_key(work: Work, gpu: GpuProperties, workspace_bytes: int) -> Key:
    """Return the cache key of an operation's plans that were built ahead.

    It contains the chip (compute capability and multiprocessors) but not the card's name: an H100 and an H200 can use
    each other's plans."""
    key = cache_key(work, gpu, workspace_bytes, autotuned=True, present=True)
    return {name: part for name, part in key.items() if name not in ("gpu", "timed")}


def to_entry(answer: PlanFacts | NoPlan, data: bytes = b"") -> Entry:
    """Return the cache entry of a plan or of the lack of one. `data`: the serialized plan."""
    if isinstance(answer, NoPlan):
        return Entry({"no_plan": answer.reason})
    content = dataclasses.asdict(answer)
    del content["from_cache"]
    return Entry(content, data)


def from_entry(entry: Entry | None) -> PlanFacts | NoPlan | None:
    """Return the answer in a cache entry, with `from_cache` set; None if it is missing or has an unknown form."""
    if entry is None:
        return None
    content = dict(entry.content)
    try:
        if "no_plan" in content:
            return NoPlan(str(content["no_plan"]))
        content["timed"] = tuple(PlanTime(**time) for time in content["timed"])
        content["sides"] = tuple(content.get("sides", ()))
        return PlanFacts(**content, from_cache=True)
    except (KeyError, TypeError):
        return None


def built_to_entry(built: Mapping[str, BuiltPlan], requested: float, trials: int = 0) -> Entry:
    """Return the cache entry of an operation's built plans, by tag; their bytes are concatenated.

    `requested`: the number of plans that were to be compiled (fewer may exist). `trials`: the number of trials that
    took them and did not finish tuning."""
    sizes = [(tag, [plan.workspace_bytes, len(plan.data)]) for tag, plan in built.items()]
    content = {"plans": sizes, "asked": requested, "trials": trials}
    return Entry(content, b"".join(plan.data for plan in built.values()))


def built_from_entry(entry: Entry | None) -> dict[str, BuiltPlan]:
    """Return the built plans in a cache entry, by tag; none if the entry is missing or has an unknown form."""
    built: dict[str, BuiltPlan] = {}
    if entry is not None:
        offset = 0
        with contextlib.suppress(KeyError, TypeError, ValueError):
            for tag, (workspace_bytes, n_bytes) in entry.content["plans"]:
                built[tag] = BuiltPlan(workspace_bytes, entry.data[offset : offset + n_bytes])
                offset += n_bytes
    return built


# -- on a GPU ------------------------------------------------------------------------------------------------------


class ReadyPlan:
    """A plan that is ready to run. A call returns before the work is done. Not thread-safe."""

    __slots__ = ("_address", "_graph", "_handle", "_n_operands", "_n_slots", "_pointers", "_repeated", "_run", "facts")

    def __init__(self, work: Work, facts: PlanFacts, graph: Any, handle: int) -> None:
        slots = graphs.slots(work)
        self.facts = facts
        # The compiled graph owns the plan: keep it alive.
        self._graph = graph
        self._run: Callable[..., None] = graph._execute_with_raw_ptrs
        self._handle = handle
        self._n_operands = len(work.operands)
        self._n_slots = len(slots)
        self._repeated = tuple(enumerate(slots))[self._n_operands :]
        self._pointers: Any = (ctypes.c_int64 * self._n_slots)()
        self._address = ctypes.addressof(self._pointers)

    def __call__(self, addresses: Sequence[int], workspace: int) -> None:
        """Run on device addresses in the order of the operation's operands. Raises where cuDNN refuses."""
        pointers = self._pointers
        pointers[: self._n_operands] = addresses
        for slot, operand in self._repeated:
            pointers[slot] = addresses[operand]
        self._run(self._address, self._n_slots, workspace, self._handle)


@dataclass(eq=False)
class Plans:
    """The source of plans for one GPU. Plans run on the stream of `handle`, a cudnnHandle_t.

    With a `workbench`, plans are autotuned on it; `tuning_budget_s` is the time for all works together. `end_capture`
    ends a capture that a failed restore left open on the stream, if there is one."""

    handle: int
    properties: GpuProperties
    _: KW_ONLY
    workspace_bytes: int
    tuning_budget_s: float
    cache: Cache
    built: Cache = field(default_factory=built_cache)
    workbench: CupyWorkbench | None = None
    end_capture: Callable[[], object] = lambda: None
    _spent_s: float = field(default=0.0, init=False)
    _tuned: int = field(default=0, init=False)

    def prepare(self, work: Work) -> ReadyPlan:
        """Return the plan for an operation, from the cache or searched for (and timed) now. Raises NoPlan."""
        autotuned = self.workbench is not None
        key = cache_key(work, self.properties, self.workspace_bytes, autotuned=autotuned, present=True)
        if side := messages.side():
            key = {**key, "code": source_digest(cudnn)}
        entry = self.cache.get(key)
        cached, data = from_entry(entry), entry.data if entry is not None else b""
        if isinstance(cached, NoPlan):
            raise cached
        if cached is not None and cached.sides == (side,):  # the other side cannot share times: each trial times anew
            cached, data = None, b""
        if cached is not None and not self._tunes_further(cached):
            graph = self._restore(work, data)
            if graph is not None:
                if not side and cached.timed and cached.budget_s < self.tuning_budget_s:
                    # This budget would have timed the same plans.
                    cached = dataclasses.replace(cached, budget_s=self.tuning_budget_s)
                return ReadyPlan(work, cached, graph, self.handle)
            self.cache.drop(key)
            cached = None
        return self._find(work, key, cached, data)

    def _tunes_further(self, cached: PlanFacts) -> bool:
        """Return whether this trial times more plans than the one that cached these facts, as its budget is larger.

        In a gate: whether only the other side has timed plans so far, so that this side's times are missing."""
        if messages.side():
            return self.workbench is not None and len(cached.sides) == 1
        more = compiled_timed(cached.budget_s) < compiled_timed(self.tuning_budget_s)
        return bool(cached.left_out) and cached.budget_s < self.tuning_budget_s and (cached.cut or more)

    def _find(self, work: Work, key: Key, cached: PlanFacts | None, data: bytes) -> ReadyPlan:
        """Search for an operation's plan and cache it.

        `cached` and `data`: facts and serialized plan of an earlier process that had less tuning time. The times in
        `cached` are reused."""
        started = perf_counter()
        ahead = self._built_ahead(work, started)
        try:
            try:
                search, facts = self._search(work, ahead, cached, started)
            except RuntimeError as error:
                if not ahead:
                    raise
                _LOG.info("the plans compiled ahead for %s do not run (%s): building others", work.name, error)
                ahead.clear()
                search, facts = self._search(work, ahead, cached, started)
        except NoPlan as no_plan:
            if no_plan.lasting:
                self.cache.put(key, to_entry(no_plan))
            raise
        finally:
            if self.workbench is not None:  # frees memory before the plan is restored
                self.workbench.release()
            self._spent_s += perf_counter() - started
        graph = None
        if facts.plan in ahead:
            graph, data = ahead[facts.plan].graph, ahead[facts.plan].data
        elif cached is None or facts.plan != cached.plan:
            search.select(facts)
            data = search.serialize()
        if self.workbench is not None:
            # Not earlier: if this trial dies while tuning, the next one uses these plans.
            self.built.drop(built_key(work, self.properties, self.workspace_bytes))
            self._tuned += 1
            messages.SEND.get()(messages.Tuning(self._tuned, self._spent_s, self.tuning_budget_s))
        # Restore the chosen plan on its own: the search's graph holds all plans, with their kernels on the device.
        if graph is None and data:
            graph = self._restore(work, data)
        if graph is None:
            search.select(facts)
            _check_order(work, search.graph)
            return ReadyPlan(work, facts, search.graph, self.handle)
        self.cache.put(key, to_entry(facts, data))
        return ReadyPlan(work, facts, graph, self.handle)

    def _built_ahead(self, work: Work, started: float) -> dict[str, BuiltPlan]:
        """Return the plans that were built ahead of this trial and that this GPU can restore, by tag.

        Plans beyond the number that the budget allows (`compiled_timed`) are restored while there is time. Plans that
        TRIALS_PER_ENTRY trials took without finishing are not used: they may have crashed these trials."""
        restored: dict[str, BuiltPlan] = {}
        key = built_key(work, self.properties, self.workspace_bytes)
        entry = self.built.get(key) if self.workbench is not None else None
        built = built_from_entry(entry)
        if entry is None or not built or (trials := int(entry.content.get("trials", 0))) >= TRIALS_PER_ENTRY:
            return restored
        self.built.put(key, dataclasses.replace(entry, content={**entry.content, "trials": trials + 1}))
        with contextlib.suppress(Exception):  # out of memory: plans that the trial builds itself may fit
            for count, (tag, plan) in enumerate(built.items()):
                if count >= compiled_timed(self.tuning_budget_s) and not self._has_time(started):
                    break
                graph = self._restore(work, plan.data)
                if graph is not None and graph.get_workspace_size() <= plan.workspace_bytes:
                    restored[tag] = dataclasses.replace(plan, graph=graph)
        return restored

    def _has_time(self, started: float) -> bool:
        """Return whether the trial's tuning budget has time left. `started`: when it began to tune this operation."""
        return self._spent_s + perf_counter() - started < self.tuning_budget_s

    def _search(
        self, work: Work, ahead: Mapping[str, BuiltPlan], cached: PlanFacts | None, started: float
    ) -> tuple[Search, PlanFacts]:
        """Time an operation's candidates and choose the fastest; without a workbench choose the heuristic's first.

        Times in `cached` are reused. In a gate they are the other side's, and the lesser time of a plan counts."""
        search = Search(work, {"handle": self.handle}, self.properties.sm, self.workspace_bytes, ahead)
        if self.workbench is None:
            return search, _facts(search, search.first())
        earlier, side = cached.timed if cached else (), messages.side()
        sides = (*(cached.sides if cached else ()), side) if side else ()
        reused = {} if side else {time.plan: time for time in earlier}
        budget = compiled_timed(self.tuning_budget_s)
        candidates, left_out, cut = search.shortlist(reused, lambda: self._has_time(started), budget)
        if not candidates:
            raise search.none_fits()
        bench, handle = self.workbench, self.handle
        try:
            addresses = bench.addresses(work)
            workspace = bench.workspace(max(candidate.workspace_bytes for candidate in candidates))
        except Exception as error:
            if out_of_memory.from_error(error) is None:
                raise
            # The step itself may still fit: timing needs a second copy of the operands.
            _LOG.warning("no memory left to time plans for %s: using cuDNN's first suggestion", work.label)
            return search, _facts(search, candidates[0], sides=sides)
        pointers = (ctypes.c_int64 * len(graphs.slots(work)))(*(addresses[slot] for slot in graphs.slots(work)))

        def runner(candidate: PlanCandidate) -> Callable[[], None]:
            """Return a function that runs a candidate."""
            arguments = ctypes.addressof(pointers), len(pointers), workspace, handle
            if candidate.plan in search.built:
                return functools.partial(search.built[candidate.plan].graph._execute_with_raw_ptrs, *arguments)
            return functools.partial(search.graph._execute_with_raw_ptrs, *arguments, candidate.place)

        if any(candidate.time_s is None and candidate.plan not in search.built for candidate in candidates):
            _check_order(work, search.graph)
        best, timed = autotune.fastest(
            [(c.plan, c.workspace_bytes, runner(c) if c.time_s is None else c.time_s) for c in candidates], bench
        )
        if side and earlier:
            timed = autotune.least_times(timed, earlier)
            best = [c.plan for c in candidates].index(min(timed, key=lambda time: time.time_s).plan)
        tuning = {"timed": timed, "left_out": left_out, "budget_s": self.tuning_budget_s, "cut": cut, "sides": sides}
        n_ahead = sum(time.plan in search.built for time in timed)
        return search, _facts(search, candidates[best], ahead=n_ahead, **tuning)

    def _restore(self, work: Work, data: bytes) -> Any | None:
        """Return the graph that a stored plan describes; None if it cannot be restored. Raises if memory runs out."""
        try:
            graph = restore(data, {"handle": self.handle})
            _check_order(work, graph)
        except Exception as error:
            # The frontend warms up a restored plan within a capture, which it leaves open on failure.
            self.end_capture()
            if out_of_memory.from_error(error) is not None:
                raise
            # Any other problem with the serialized bytes is solved by building the plan again.
            _LOG.info("the cached plan for %s cannot be used (%s): building it again", work.name, error)
            return None
        return graph


def _facts(search: Search, chosen: PlanCandidate, **tuning: Any) -> PlanFacts:
    """Return the facts of the chosen plan. `tuning` has the fields of `PlanFacts` about autotuning."""
    return PlanFacts(chosen.plan, chosen.workspace_bytes, chosen.place, search.offered, **tuning)


def restore(data: bytes, target: dict[str, Any]) -> Any:
    """Return a graph with the plan that was serialized as `data`. `target`: see `graphs.build_graph`."""
    graph = graphs.empty(target)
    graph.deserialize(data)
    return graph


def _check_order(work: Work, graph: Any) -> None:
    """Raise RuntimeError unless the plan takes exactly the tensors of `graphs.slots`, which calls do not check."""
    graph._prepare_variant_pack_template()
    uids = list(graph._get_variant_pack_uids_sorted())
    expected = list(range(1, len(graphs.slots(work)) + 1))
    if uids != expected:
        raise RuntimeError(f"cuDNN's plan for {work.name} takes tensors {uids}, expected {expected}")
