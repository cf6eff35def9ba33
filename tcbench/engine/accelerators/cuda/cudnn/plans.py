"""Plans of cuDNN's graphs on this machine's GPU: found, timed, kept, and called with bare addresses.

What a plan is found to be (`PlanFacts`), or that there is none (`NoPlan`), is data that the forecast, the records and
the cache share. `Plans` belongs to one GPU and one cuDNN handle."""

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
"""Autotuning looks at the heuristic's order as far as its twelfth plan that need not be compiled. An H100 has 40 for a
convolution, all of one engine."""
RUNTIME_COMPILED_TIMED = 2
"""Of the plans that cuDNN compiles when they are built (about half a second each, some thirty for one batch
normalisation), the first two for each minute of the budget, and at least these."""

WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Variables of processes that build plans by a GPU's properties: they look at no GPU and take no memory of one."""

TRIALS_PER_ENTRY = 2
"""Trials that may die while they tune the same plans that were compiled before. The next compiles its own."""


def compiled_timed(budget_s: float) -> float:
    """The number of runtime-compiled plans of a work that a trial with this budget looks at."""
    return RUNTIME_COMPILED_TIMED * max(1.0, budget_s / 60)


def plan_cache(fresh: bool = False) -> Cache:
    """The plans that this user's runs and forecasts share; `fresh` ignores those that are there."""
    return Cache.of_code(messages.GPU_PLANS, fresh=fresh)


def built_cache() -> Cache:
    """Plans that were built before a trial times them (`tcbench.engine.accelerators.cuda.cudnn.ahead`)."""
    return Cache.of_code(_BUILT)


def built_folder() -> Path:
    """Return where these plans are carried to, which `built_cache` avoids if other users can write there."""
    return folder(_BUILT)


@dataclass(unsafe_hash=True)
class NoPlan(Exception):
    """cuDNN cannot do this work here. `reason` is one line. `lasting`: it will be so next time, and is worth keeping;
    plans that cuDNN offers but cannot build may build once NVRTC, the driver or the GPU is as it should be."""

    reason: str
    lasting: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class PlanFacts:
    """The plan that was chosen. `plan`: cuDNN's own tag, engine and knobs. `place`: its place among the `offered` plans
    of cuDNN's heuristic. `timed`: what autotuning measured, in the heuristic's order, and `left_out` how many others
    might have served; none without autotuning. `cut`: some of these for want of time, as the trial had `budget_s` for
    all its works. `sides`: those of a gate whose times `timed` holds. `ahead`: the number of timed plans that were
    compiled before the trial."""

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
    """A plan that was built and fits, at its place in the heuristic's order; or one timed before, with its time."""

    place: int
    plan: str
    workspace_bytes: int
    time_s: float | None = None


@dataclass(frozen=True)
class BuiltPlan:
    """A plan that another process built, serialized; `graph`: restored."""

    workspace_bytes: int
    data: bytes
    graph: Any = None


# -- finding a plan: the same with a GPU and without ---------------------------------------------------------------


class Search:
    """The plans that cuDNN's heuristic offers for a work, built one after another as they are asked for, but for those
    that are `built`. A plan over the workspace limit is refused by cuDNN before it is built where its engine knows, and
    by us after. Raises NoPlan where cuDNN knows no engine at all."""

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
            self.graph = graphs.define(work, target, sm)
            self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        except cudnn.cudnnGraphNotSupportedError as error:
            _LOG.debug("%s: %s", work.key, error)
            raise NoPlan(self._no("has no plan")) from None
        notes = graphs.deselected_notes(work)
        if notes:
            self.graph.deselect_numeric_notes([getattr(cudnn.numerical_note, note) for note in notes])
        self.graph.deselect_workspace_greater_than(workspace_bytes)
        self.offered = int(self.graph.get_execution_plan_count())
        self._too_large: list[int] = []
        self._failures: list[str] = []
        self._memory_ran_out: Exception | None = None

    def candidates(self) -> Iterator[PlanCandidate]:
        """In the heuristic's order, each plan once."""
        built = (self._build(place, plan) for plan, place in self._places().items())
        return (candidate for candidate in built if candidate is not None)

    def shortlist(
        self, known: Mapping[str, PlanTime], has_time: Callable[[], bool], compiled_timed: float
    ) -> tuple[list[PlanCandidate], int, bool]:
        """The candidates that autotuning chooses from, the number of others that might have served, and whether some of
        them are left out for want of time. In the heuristic's order as far as PRECOMPILED_TIMED and `compiled_timed`
        go: of either kind the first that fits, others while there is time. What is known is not built. Plans in `built`
        cost no compiling: all of them are candidates, whatever `compiled_timed` says."""
        places, refused, cut = self._places(), 0, False
        candidates: list[PlanCandidate] = []
        room: dict[bool, float] = {False: PRECOMPILED_TIMED, True: compiled_timed}
        begun = set()
        for plan, place in places.items():
            compiled = self._is_runtime_compiled(place)
            if room[False] < 1:
                break
            if room[compiled] < 1 and plan not in self.built:
                continue
            candidate: PlanCandidate | None
            if plan in known:
                candidate = PlanCandidate(place, plan, known[plan].workspace_bytes, known[plan].time_s)
            elif plan not in self.built and compiled in begun and not has_time():
                cut = True
                room[compiled] -= 1
                continue
            else:
                candidate = self._build(place, plan)
            if candidate is None:
                refused += 1
                continue
            begun.add(compiled)
            room[compiled] -= 1
            candidates.append(candidate)
        return candidates, len(places) - refused - len(candidates), cut

    def _places(self) -> dict[str, int]:
        """Each plan's first place in the heuristic's order."""
        places: dict[str, int] = {}
        for place in range(self.offered):
            places.setdefault(str(self.graph.get_plan_name_at_index(place)), place)
        return places

    def first(self, *, build: bool = True) -> PlanCandidate:
        """The heuristic's first that fits. Without `build`, a plan that cuDNN would compile is not built: cuDNN has
        found its configuration supported and knows its workspace. Of 388 such plans, for shapes of all kinds and four
        GPUs, every one then built, with that workspace. Raises NoPlan."""
        for plan, place in self._places().items():
            if not build:
                # With no workspace allowed, not even none, a plan is refused before it is built with what it needs.
                self.graph.deselect_workspace_greater_than(-1 if self._is_runtime_compiled(place) else self._limit)
            candidate = self._build(place, plan)
            if candidate is not None:
                return candidate
        raise self.none_fits()

    def select(self, chosen: PlanCandidate | PlanFacts) -> None:
        """Make a plan the one that is executed and serialized; build it if that was not done here."""
        self.graph.build_plan_at_index(chosen.place)

    def compiled(self, most: float) -> dict[str, BuiltPlan]:
        """Of the plans that cuDNN compiles those that autotuning would look at, by tag. Raises what stops the first."""
        built: dict[str, BuiltPlan] = {}
        ready = 0
        for plan, place in self._places().items():
            if not self._is_runtime_compiled(place):
                ready += 1
            elif len(built) + 1 <= most and (candidate := self._build(place, plan)) and (data := self.serialize()):
                built[plan] = BuiltPlan(candidate.workspace_bytes, data)
            if ready == PRECOMPILED_TIMED:
                break
        if self._failures and not built:
            raise self.none_fits()
        return built

    def serialize(self) -> bytes:
        """The selected plan; nothing where its engine cannot be serialized."""
        try:
            return bytes(self.graph.serialize(as_bytes=True))
        except RuntimeError as error:
            _LOG.debug("%s: cannot be serialized: %s", self._work.key, error)
            return b""

    def none_fits(self) -> Exception:
        """Why there was no candidate: NoPlan, or cuDNN's own error where the GPU had no memory left to build one."""
        if self._memory_ran_out is not None:
            return self._memory_ran_out
        limit = f"a workspace of {self._limit / _MIB:.0f} MiB"
        if self._too_large:
            least = f"the least takes {min(self._too_large) / _MIB:.0f} MiB"
            return NoPlan(self._no(f"has no plan within {limit} ({least})"))
        if self._failures or not graphs.deselected_notes(self._work):
            none = self._no("has no plan that can be built")
            return NoPlan(none + _cause(self._failures), lasting=not self._failures)
        return NoPlan(self._no("has no plan that computes in float32"))

    def _build(self, place: int, plan: str) -> PlanCandidate | None:
        if plan in self.built:
            return PlanCandidate(place, plan, self.built[plan].workspace_bytes)
        try:
            self.graph.build_plan_at_index(place)
            workspace_bytes = int(self.graph.get_workspace_size_plan_at_index(place))
        except (RuntimeError, self._cudnn.cudnnGraphNotSupportedError) as error:
            required = _REQUIRES.search(str(error))
            if required and int(required[1]) <= self._limit:
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

    def _no(self, what: str) -> str:
        described: Any = self._work
        of: Any = described.conv if hasattr(described, "conv") else described.norm
        sm = f"{self._sm // 10}.{self._sm % 10}"
        return (
            f"cuDNN {libraries.version()} {what} for {self._work.name} {of.layout} {of.dtype} "
            f"on compute capability {sm}"
        )


def _cause(failures: list[str]) -> str:
    """Why plans did not build, to be added to the line that says so."""
    if any(_NOT_COMPILED in failure for failure in failures):
        return f": NVRTC {libraries.nvrtc_version()} fails to compile cuDNN's kernels ('tcbench doctor' tries it)"
    return f": {failures[0][:300]}" if failures else ""


# -- keeping what was found ----------------------------------------------------------------------------------------


def cache_key(
    work: Work, gpu: GpuProperties, workspace_bytes: int, *, autotuned: bool, present: bool, built: bool = True
) -> Key:
    """Everything that a choice of plan depends on. `present`: found on the GPU itself. `built`: not foretold."""
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
    """The cache key of a work's plans that were compiled before a trial.

    It has the chip (compute capability and multiprocessors) but not the card's name: an H200 restores what was
    compiled for an H100, and the other way round."""
    key = cache_key(work, gpu, workspace_bytes, autotuned=True, present=True)
    return {name: part for name, part in key.items() if name not in ("gpu", "timed")}


def to_entry(answer: PlanFacts | NoPlan, data: bytes = b"") -> Entry:
    """An answer as the cache keeps it."""
    if isinstance(answer, NoPlan):
        return Entry({"no_plan": answer.reason})
    content = dataclasses.asdict(answer)
    del content["from_cache"]
    return Entry(content, data)


def from_entry(entry: Entry) -> PlanFacts | NoPlan | None:
    """The answer that was kept, marked as such; None where it is not understood."""
    content = dict(entry.content)
    try:
        if "no_plan" in content:
            return NoPlan(str(content["no_plan"]))
        content["timed"] = tuple(PlanTime(**time) for time in content["timed"])
        content["sides"] = tuple(content.get("sides", ()))
        return PlanFacts(**content, from_cache=True)
    except (KeyError, TypeError):
        return None


def built_to_entry(built: Mapping[str, BuiltPlan], asked: float, trials: int = 0) -> Entry:
    """The cache entry of a work's plans by tag: the bytes of one plan after another.

    `asked`: the number of plans that were to be compiled (there may be fewer). `trials`: the number of trials that took
    them and did not finish tuning."""
    sizes = [(tag, [plan.workspace_bytes, len(plan.data)]) for tag, plan in built.items()]
    return Entry({"plans": sizes, "asked": asked, "trials": trials}, b"".join(plan.data for plan in built.values()))


def built_from_entry(entry: Entry | None) -> dict[str, BuiltPlan]:
    """The plans that were kept; none where the entry is missing or not understood."""
    built: dict[str, BuiltPlan] = {}
    if entry is not None:
        at = 0
        with contextlib.suppress(KeyError, TypeError, ValueError):
            for tag, (workspace_bytes, n_bytes) in entry.content["plans"]:
                built[tag] = BuiltPlan(workspace_bytes, entry.data[at : at + n_bytes])
                at += n_bytes
    return built


# -- on a GPU ------------------------------------------------------------------------------------------------------


class ReadyPlan:
    """A plan that is ready to run. Calling it returns before its work is done. Not for two threads at once."""

    __slots__ = ("_again", "_count", "_execute", "_graph", "_handle", "_n", "_pointers", "_pointers_address", "facts")

    def __init__(self, work: Work, facts: PlanFacts, graph: Any, handle: int) -> None:
        slots = graphs.slots(work)
        self.facts = facts
        # The compiled graph owns the plan and must outlive every call.
        self._graph = graph
        self._execute: Callable[..., None] = graph._execute_with_raw_ptrs
        self._handle = handle
        self._count = len(work.operands)
        self._n = len(slots)
        self._again = tuple(enumerate(slots))[self._count :]
        self._pointers: Any = (ctypes.c_int64 * self._n)()
        self._pointers_address = ctypes.addressof(self._pointers)

    def __call__(self, addresses: Sequence[int], workspace: int) -> None:
        """Run on device addresses in the order of the work's operands. Raises where cuDNN refuses."""
        pointers = self._pointers
        pointers[: self._count] = addresses
        for slot, operand in self._again:
            pointers[slot] = addresses[operand]
        self._execute(self._pointers_address, self._n, workspace, self._handle)


@dataclass(eq=False)
class Plans:
    """Plans for one GPU, by work. `handle` is a cudnnHandle_t; plans run on its stream. With a workbench plans are
    autotuned on it, all works together within `tuning_budget_s`. `end_capture` ends a capture that was left open on the
    handle's stream, if there is one."""

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
        """The plan for this work, from the cache or found (and timed) now. Raises NoPlan."""
        autotuned = self.workbench is not None
        key = cache_key(work, self.properties, self.workspace_bytes, autotuned=autotuned, present=True)
        if side := messages.side():
            key = {**key, "code": source_digest(cudnn)}
        entry = self.cache.get(key)
        kept, data = (from_entry(entry), entry.data) if entry is not None else (None, b"")
        if isinstance(kept, NoPlan):
            raise kept
        if kept is not None and kept.sides == (side,):  # the other side has other candidates
            kept, data = None, b""
        if kept is not None and not self._goes_on_from(kept):
            graph = self._restore(work, data)
            if graph is not None:
                if not side and kept.timed and kept.budget_s < self.tuning_budget_s:
                    # This budget would have timed the same plans.
                    kept = dataclasses.replace(kept, budget_s=self.tuning_budget_s)
                return ReadyPlan(work, kept, graph, self.handle)
            self.cache.drop(key)
            kept = None
        return self._find(work, key, kept, data)

    def _goes_on_from(self, kept: PlanFacts) -> bool:
        """Whether this trial's budget reaches further than that of the one that kept it; in a gate whether the other
        side kept it, so that the times of this one are to be added."""
        if messages.side():
            return self.workbench is not None and len(kept.sides) == 1
        more = compiled_timed(kept.budget_s) < compiled_timed(self.tuning_budget_s)
        return bool(kept.left_out) and kept.budget_s < self.tuning_budget_s and (kept.cut or more)

    def _find(self, work: Work, key: Key, kept: PlanFacts | None, data: bytes) -> ReadyPlan:
        """`kept`: of an earlier process that had less time for tuning, with its serialized plan; its times are used."""
        started = perf_counter()
        ahead = self._built_ahead(work, started)
        try:
            try:
                search, facts = self._search(work, ahead, kept, started)
            except RuntimeError as error:
                if not ahead:
                    raise
                _LOG.info("plans that were built ahead for %s do not run (%s): others are built", work.name, error)
                ahead.clear()
                search, facts = self._search(work, ahead, kept, started)
        except NoPlan as none:
            if none.lasting:
                self.cache.put(key, to_entry(none))
            raise
        finally:
            if self.workbench is not None:  # before the plan is restored, which takes memory too
                self.workbench.release()
            self._spent_s += perf_counter() - started
        graph = None
        if facts.plan in ahead:
            graph, data = ahead[facts.plan].graph, ahead[facts.plan].data
        elif kept is None or facts.plan != kept.plan:
            search.select(facts)
            data = search.serialize()
        if self.workbench is not None:
            # Not before: a trial that dies while it tunes leaves them to the next.
            self.built.drop(built_key(work, self.properties, self.workspace_bytes))
            self._tuned += 1
            messages.SEND.get()(messages.Tuning(self._tuned, self._spent_s, self.tuning_budget_s))
        # Only the chosen plan is kept: the others hold their kernels on the device.
        if graph is None and data:
            graph = self._restore(work, data)
        if graph is None:
            search.select(facts)
            _check_order(work, search.graph)
            return ReadyPlan(work, facts, search.graph, self.handle)
        self.cache.put(key, to_entry(facts, data))
        return ReadyPlan(work, facts, graph, self.handle)

    def _built_ahead(self, work: Work, started: float) -> dict[str, BuiltPlan]:
        """Return the plans by tag that were compiled before this trial and that this GPU restores.

        Those beyond the budget's number are restored while there is time. Plans that two trials took and did not finish
        tuning are left alone: they may be what ended the trials."""
        restored: dict[str, BuiltPlan] = {}
        key = built_key(work, self.properties, self.workspace_bytes)
        entry = self.built.get(key) if self.workbench is not None else None
        built = built_from_entry(entry)
        if entry is None or not built or (trials := int(entry.content.get("trials", 0))) >= TRIALS_PER_ENTRY:
            return restored
        self.built.put(key, dataclasses.replace(entry, content={**entry.content, "trials": trials + 1}))
        with contextlib.suppress(Exception):  # memory ran out: what the trial builds itself may fit
            for count, (tag, plan) in enumerate(built.items()):
                if count >= compiled_timed(self.tuning_budget_s) and not self._has_time(started):
                    break
                graph = self._restore(work, plan.data)
                if graph is not None and graph.get_workspace_size() <= plan.workspace_bytes:
                    restored[tag] = dataclasses.replace(plan, graph=graph)
        return restored

    def _has_time(self, started: float) -> bool:
        """Return whether the trial's tuning budget has time left, `started` being when it began this work."""
        return self._spent_s + perf_counter() - started < self.tuning_budget_s

    def _search(
        self, work: Work, ahead: Mapping[str, BuiltPlan], kept: PlanFacts | None, started: float
    ) -> tuple[Search, PlanFacts]:
        search = Search(work, {"handle": self.handle}, self.properties.sm, self.workspace_bytes, ahead)
        timed = kept.timed if kept else ()
        if (side := messages.side()) and self.workbench is not None:
            facts = self._choose(work, search, (), started, timed)
            return search, dataclasses.replace(facts, sides=(*(kept.sides if kept else ()), side))
        return search, self._choose(work, search, timed, started)

    def _choose(
        self,
        work: Work,
        search: Search,
        known: Sequence[PlanTime],
        started: float,
        other_side: Sequence[PlanTime] = (),
    ) -> PlanFacts:
        if self.workbench is None:
            return _facts(search, search.first())
        candidates, left_out, cut = search.shortlist(
            {time.plan: time for time in known},
            lambda: self._has_time(started),
            compiled_timed(self.tuning_budget_s),
        )
        if not candidates:
            raise search.none_fits()
        bench, handle = self.workbench, self.handle
        try:
            addresses = bench.addresses(work)
            workspace = bench.workspace(max(candidate.workspace_bytes for candidate in candidates))
        except Exception as error:
            if out_of_memory.from_error(error) is None:
                raise
            # The step itself may still fit: timing takes a second set of its operands.
            _LOG.warning("no memory left to time plans for %s: the heuristic's first is taken", work.label)
            return _facts(search, candidates[0])
        pointers = (ctypes.c_int64 * len(graphs.slots(work)))(*(addresses[slot] for slot in graphs.slots(work)))

        def runner(candidate: PlanCandidate) -> Callable[[], None]:
            arguments = ctypes.addressof(pointers), len(pointers), workspace, handle
            if candidate.plan in search.built:
                return functools.partial(search.built[candidate.plan].graph._execute_with_raw_ptrs, *arguments)
            return functools.partial(search.graph._execute_with_raw_ptrs, *arguments, candidate.place)

        if any(candidate.time_s is None and candidate.plan not in search.built for candidate in candidates):
            _check_order(work, search.graph)
        best, timed = autotune.fastest(
            [(c.plan, c.workspace_bytes, runner(c) if c.time_s is None else c.time_s) for c in candidates], bench
        )
        if other_side:
            timed = autotune.of_both(timed, other_side)
            fastest = min(timed, key=lambda time: time.time_s).plan
            best = next(place for place, candidate in enumerate(candidates) if candidate.plan == fastest)
        tuning = {"timed": timed, "left_out": left_out, "budget_s": self.tuning_budget_s, "cut": cut}
        ahead = sum(time.plan in search.built for time in timed)
        return _facts(search, candidates[best], ahead=ahead, **tuning)

    def _restore(self, work: Work, data: bytes) -> Any | None:
        try:
            graph = restore(data, {"handle": self.handle})
            _check_order(work, graph)
        except Exception as error:
            # The frontend warms a restored plan up within a capture, which it leaves open where a step of that fails.
            self.end_capture()
            if out_of_memory.from_error(error) is not None:
                raise
            # Whatever else is wrong with serialized bytes, building anew is the cure.
            _LOG.info("a kept plan for %s is of no use (%s): it is built again", work.name, error)
            return None
        return graph


def _facts(search: Search, chosen: PlanCandidate, **tuning: Any) -> PlanFacts:
    return PlanFacts(chosen.plan, chosen.workspace_bytes, chosen.place, search.offered, **tuning)


def restore(data: bytes, target: dict[str, Any]) -> Any:
    """A graph with one plan, as it was serialized."""
    graph = graphs.empty(target)
    graph.deserialize(data)
    return graph


def _check_order(work: Work, graph: Any) -> None:
    """Addresses go to the plan by number alone: that it takes exactly ours is checked once."""
    graph._prepare_variant_pack_template()
    taken = list(graph._get_variant_pack_uids_sorted())
    expected = list(range(1, len(graphs.slots(work)) + 1))
    if taken != expected:
        raise RuntimeError(f"cuDNN's plan for {work.name} takes tensors {taken}, expected {expected}")
