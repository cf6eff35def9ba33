"""Changes that would shorten the steps of a training trace, and what each saves at most. Pure functions.

Each change has a function that returns what it claims and what it saves at most. It claims idle time by its cause, and
time in which the GPU runs nothing but work that the change removes or shortens. Every nanosecond is claimed at most
once: an idle nanosecond has one cause, a kernel belongs to one change, and time in which kernels of two changes overlap
is claimed by neither.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis import intervals
from tcbench.analysis.kernel_kinds import kernel_kind, matrix_precision
from tcbench.analysis.trace_causes import Cover, IdleCause
from tcbench.analysis.trace_verdict import (
    LEAST_ACTIVITIES,
    PhaseShare,
    TraceVerdict,
    busy_time,
    phase_name,
    recomputed_work,
)
from tcbench.core.groups import grouped, summed
from tcbench.core.recording import Activity, ApiCall
from tcbench.core.training_trace import ThreadKey, TrainingTrace, UserRange

Change = Literal[
    "input_workers",
    "fewer_synchronisations",
    "fused_optimizer",
    "cuda_graphs",
    "compile",
    "host_pauses",
    "low_precision",
    "channels_last",
    "fused_elementwise",
    "overlap_communication",
    "keep_activations",
]

LEAST_SHARE = 0.02
"""A change that saves less than this share of the window at most is no advice."""

UPDATE_RANGE = re.compile(r"\boptimizer\b(?!.*zero_grad)|^\W*(update|opt(imizer)?_?step)\W*$", re.IGNORECASE)
"""The names of ranges in which an optimizer updates the parameters."""

UPDATE_PASSES = 3
"""The least transfers of all parameters in an update: read them and their gradients, and write them."""

FUSED_OPERATORS = 50
"""An update of more outermost operators per step than this handles each parameter by itself. With fused=True, PyTorch's
Adam runs 2, whatever the number of parameters."""

LEAST_PAUSE_NS = 1_000_000
"""Idle time of this length or more before one launch is a pause. To launch many kernels at once does not shorten it."""

_LAUNCHING: tuple[IdleCause, ...] = ("launch_call", "operator", "python")


@dataclass(frozen=True)
class PeakRates:
    """Published rates of a GPU: `operations_per_s` by precision ("fp32", "tf32", "fp16"), and bytes of memory."""

    operations_per_s: Mapping[str, float]
    memory_bytes_per_s: float


@dataclass(frozen=True)
class TraceAdvice:
    """A change, and the time of the window that it saves at most.

    It claims `idle_ns` of the GPU's idle time, and `work_ns` in which nothing ran but the work that it concerns.
    `launches` counts the launches of that work; for idle time alone, those that ended it. It is 0 if none is known."""

    change: Change
    at_most_ns: int
    idle_ns: int
    work_ns: int
    launches: int


def advise(trace: TrainingTrace, verdict: TraceVerdict, rates: PeakRates | None = None) -> tuple[TraceAdvice, ...]:
    """Return the changes that save at least `LEAST_SHARE` of the window at most, the largest first. `rates` are those
    of the trace's GPU. If they are not known, lower precision is no advice."""
    if verdict.clocks_differ or (not verdict.n_steps and len(verdict.window.activities) < LEAST_ACTIVITIES):
        return ()
    if verdict.is_on_cpu:
        advice = [estimate(trace, verdict) for estimate in HOST_ESTIMATES]
    else:
        facts = _facts(trace, verdict, rates)
        advice = [estimate(facts) for estimate in ESTIMATES]
    worthwhile = [each for each in advice if each.at_most_ns >= LEAST_SHARE * verdict.window_ns]
    return tuple(sorted(worthwhile, key=lambda each: -each.at_most_ns))


_Launch = tuple[int, int]


@dataclass(frozen=True)
class _Facts:
    """The figures that the estimates are computed from.

    - `parts`: the window's work by the change that it belongs to, `None` if to none; of low precision by precision.
    - `update_launches`: the process and correlation of each launch in an update by kernels that are not fused."""

    trace: TrainingTrace
    verdict: TraceVerdict
    rates: PeakRates | None
    parts: Mapping[str | None, list[tuple[Activity, ApiCall | None]]]
    update_launches: frozenset[_Launch]

    def idle(self, cause: IdleCause) -> tuple[int, int]:
        """Return the idle time of a cause, and the number of launches that ended it."""
        gaps = [gap for gap in self.verdict.gaps if gap.cause == cause]
        return sum(gap.end_ns - gap.begin_ns for gap in gaps), len({gap.launch for gap in gaps if gap.launch})

    def late_launches(self, in_update: bool, pauses: bool) -> tuple[int, int]:
        """Return the idle time while the host launched late, and the number of launches that ended it: those inside or
        outside of an update, and those after `LEAST_PAUSE_NS` of such time or more, or after less.

        Idle time at the end of the window, which no launch ended, is not in it."""
        late_ns = summed(
            ((gap.launch.process, gap.launch.correlation), gap.end_ns - gap.begin_ns)
            for gap in self.verdict.gaps
            if gap.launch is not None and gap.cause in _LAUNCHING
        )
        chosen = [
            time_ns
            for launch, time_ns in late_ns.items()
            if (launch in self.update_launches) == in_update and (time_ns >= LEAST_PAUSE_NS) == pauses
        ]
        return round(sum(chosen)), len(chosen)

    def work(self, part: str) -> tuple[int, set[_Launch]]:
        """Return the time in which nothing but the work of a part ran, and its launches."""
        window = self.verdict.window
        other_works = [activity for name, works in self.parts.items() if name != part for activity, _ in works]
        alone_ns = self.verdict.busy_ns - round(intervals.length(busy_time(window, other_works)))
        launches = {(launch.process, launch.correlation) for _, launch in self.parts.get(part, ()) if launch}
        return alone_ns, launches


def _facts(trace: TrainingTrace, verdict: TraceVerdict, rates: PeakRates | None) -> _Facts:
    window = verdict.window
    update_times = grouped((each.thread, (each.begin_ns, each.end_ns)) for each in update_ranges(trace))
    updates = {thread: Cover(times) for thread, times in update_times.items()}
    recomputed = recomputed_work(trace, window)
    works = list(zip(window.activities, window.launches, strict=True))
    parts = grouped(
        (None if id(activity) in recomputed else _part(activity, launch, updates), (activity, launch))
        for activity, launch in works
    )
    update_launches = {(launch.process, launch.correlation) for _, launch in parts.get("fused_optimizer", ()) if launch}
    return _Facts(trace, verdict, rates, parts, frozenset(update_launches))


def update_ranges(trace: TrainingTrace) -> list[UserRange]:
    """Return the ranges of updates. A range in which the backward pass runs is none: the program gave the optimizer a
    closure that does the whole step."""
    backward = Cover(times for thread_times in trace.backward.values() for times in thread_times)
    ranges = [each for each in trace.ranges if UPDATE_RANGE.search(each.name)]
    return [each for each in ranges if not backward.within(each.begin_ns, each.end_ns)]


def _part(activity: Activity, launch: ApiCall | None, updates: Mapping[ThreadKey, Cover]) -> str | None:
    """Return the change that an activity belongs to; for low precision the precision of a matrix kernel."""
    kind = kernel_kind(activity.name) if activity.kind == "kernel" else "copy"
    if kind == "communication":
        return None
    cover = updates.get((launch.process, launch.thread)) if launch else None
    if launch and cover and cover.within(launch.begin_ns, launch.begin_ns + 1) and kind != "optimizer":
        return "fused_optimizer"
    if kind in ("matmul", "convolution", "attention"):
        return matrix_precision(activity.name)
    return {"transpose": "channels_last", "elementwise": "fused_elementwise"}.get(kind)


# -- one estimate per change


def input_workers(facts: _Facts) -> TraceAdvice:
    """Load the input in other processes or threads: saves at most the idle time while the host waited for input."""
    idle_ns, launches = facts.idle("input")
    return TraceAdvice("input_workers", idle_ns, idle_ns, 0, launches)


def fewer_synchronisations(facts: _Facts) -> TraceAdvice:
    """Let the host run ahead: saves at most the idle time while the host waited in a synchronisation."""
    idle_ns, launches = facts.idle("synchronisation")
    return TraceAdvice("fewer_synchronisations", idle_ns, idle_ns, 0, launches)


def cuda_graphs(facts: _Facts) -> TraceAdvice:
    """Launch many kernels at once (CUDA graphs, torch.compile): saves at most the idle time while the host launched
    late, without input, synchronisations, the update and pauses."""
    idle_ns, launches = facts.late_launches(in_update=False, pauses=False)
    return TraceAdvice("cuda_graphs", idle_ns, idle_ns, 0, launches)


def host_pauses(facts: _Facts) -> TraceAdvice:
    """Shorten long pauses of the host, in which it does other things than to launch, such as to start up, to allocate
    or to prepare data: saves at most the idle time in these."""
    idle_ns, launches = facts.late_launches(in_update=False, pauses=True)
    return TraceAdvice("host_pauses", idle_ns, idle_ns, 0, launches)


def fused_optimizer(facts: _Facts) -> TraceAdvice:
    """Update all parameters with one kernel: saves at most the idle time before the update's kernels, and their own
    time less `UPDATE_PASSES` transfers of the parameters. The size of the parameters is taken from the backward pass's
    all-reduces over all ranks. If it or the memory's rate is unknown, nothing is subtracted."""
    idle_ns = sum(facts.late_launches(in_update=True, pauses=pauses)[0] for pauses in (False, True))
    work_ns, launches = facts.work("fused_optimizer")
    begin_ns, end_ns = facts.verdict.window.begin_ns, facts.verdict.window.end_ns
    n_bytes = sum(
        each.bytes
        for each in facts.trace.collectives
        if each.is_all_reduce and each.ranks == facts.trace.ranks and each.thread in facts.trace.backward
        if begin_ns <= each.begin_ns < end_ns
    )
    least_ns = UPDATE_PASSES * n_bytes / facts.rates.memory_bytes_per_s * 1e9 if facts.rates else 0.0
    at_most_ns = idle_ns + max(0, round(work_ns - least_ns))
    return TraceAdvice("fused_optimizer", at_most_ns, idle_ns, work_ns, len(launches))


def low_precision(facts: _Facts) -> TraceAdvice:
    """Compute in fp16 or bf16 on Tensor Cores: saves at most the time of matrix kernels in higher precision, times one
    minus the ratio of the published rates of their precision and of fp16."""
    rates = facts.rates.operations_per_s if facts.rates else {}
    saved_ns, total_ns = 0.0, 0
    all_launches: set[_Launch] = set()
    for precision in ("fp32", "tf32"):
        work_ns, launches = facts.work(precision)
        if precision in rates:
            saved_ns += work_ns * (1 - rates[precision] / rates["fp16"])
            total_ns, all_launches = total_ns + work_ns, all_launches | launches
    return TraceAdvice("low_precision", round(saved_ns), 0, total_ns, len(all_launches))


def channels_last(facts: _Facts) -> TraceAdvice:
    """Keep activations in NHWC: saves at most the time of kernels that change the layout."""
    work_ns, launches = facts.work("channels_last")
    return TraceAdvice("channels_last", work_ns, 0, work_ns, len(launches))


def fused_elementwise(facts: _Facts) -> TraceAdvice:
    """Fuse normalisation, additions and activations: saves at most the time of elementwise kernels."""
    work_ns, launches = facts.work("fused_elementwise")
    return TraceAdvice("fused_elementwise", work_ns, 0, work_ns, len(launches))


def overlap_communication(facts: _Facts) -> TraceAdvice:
    """Communicate while the GPU computes: saves at most the exposed communication, and at most the work that no
    communication overlaps with and no other change removes, because there is no more time to communicate in."""
    verdict = facts.verdict
    free_ns = verdict.work_ns - (verdict.communication_ns - verdict.exposed_ns)
    removed_ns = sum(
        estimate(facts).work_ns for estimate in (fused_optimizer, low_precision, channels_last, fused_elementwise)
    )
    at_most_ns = max(0, min(verdict.exposed_ns, free_ns - removed_ns))
    return TraceAdvice("overlap_communication", at_most_ns, 0, verdict.exposed_ns, 0)


def keep_activations(facts: _Facts) -> TraceAdvice:
    """Store activations instead of computing them again: saves at most the recomputation that nothing overlaps."""
    recomputation_ns = facts.verdict.recomputation_ns
    return TraceAdvice("keep_activations", recomputation_ns, 0, recomputation_ns, 0)


ESTIMATES: tuple[Callable[[_Facts], TraceAdvice], ...] = (
    input_workers,
    fewer_synchronisations,
    fused_optimizer,
    cuda_graphs,
    host_pauses,
    low_precision,
    channels_last,
    fused_elementwise,
    overlap_communication,
    keep_activations,
)
"""The estimates of all changes for a GPU."""


# -- on a CPU


def host_input_workers(_trace: TrainingTrace, verdict: TraceVerdict) -> TraceAdvice:
    """Load the input in other processes: saves at most the wait for input."""
    return TraceAdvice("input_workers", verdict.causes["input"], verdict.causes["input"], 0, 0)


def host_fused_optimizer(trace: TrainingTrace, verdict: TraceVerdict) -> TraceAdvice:
    """Update all parameters with one operator: saves at most the time of updates that run more than `FUSED_OPERATORS`
    operators per step."""
    updates = _unfused_updates(trace, verdict)
    idle_ns, work_ns = sum(phase.idle_ns for phase in updates), sum(phase.work_ns for phase in updates)
    launches = sum(phase.launches for phase in updates)
    return TraceAdvice("fused_optimizer", idle_ns + work_ns, idle_ns, work_ns, launches)


def host_compile(trace: TrainingTrace, verdict: TraceVerdict) -> TraceAdvice:
    """Run fewer operators from Python (torch.compile): saves at most the time between operators, without pauses and
    outside of updates that are not fused."""
    between_ns = sum(length_ns for length_ns in _python_ns(trace, verdict) if length_ns < LEAST_PAUSE_NS)
    idle_ns = between_ns if verdict.launches else 0
    return TraceAdvice("compile", idle_ns, idle_ns, 0, verdict.launches)


def host_long_pauses(trace: TrainingTrace, verdict: TraceVerdict) -> TraceAdvice:
    """Shorten long pauses without an operator: saves at most their time, outside of updates that are not fused."""
    pauses = [length_ns for length_ns in _python_ns(trace, verdict) if length_ns >= LEAST_PAUSE_NS]
    return TraceAdvice("host_pauses", sum(pauses), sum(pauses), 0, len(pauses))


def _python_ns(trace: TrainingTrace, verdict: TraceVerdict) -> list[int]:
    """Return the length of each piece of time in Python outside of updates that are not fused."""
    names = {phase.name for phase in _unfused_updates(trace, verdict)}
    updates = intervals.union((r.begin_ns, r.end_ns) for r in update_ranges(trace) if phase_name(r.name) in names)
    gaps = [(gap.begin_ns, gap.end_ns) for gap in verdict.gaps if gap.cause == "python"]
    return [round(end - begin) for begin, end in intervals.difference(gaps, updates)]


def _unfused_updates(trace: TrainingTrace, verdict: TraceVerdict) -> list[PhaseShare]:
    most = FUSED_OPERATORS * (verdict.n_steps or 1)
    names = {phase_name(each.name) for each in update_ranges(trace)}
    return [phase for phase in verdict.phases if phase.name in names and phase.launches > most]


HOST_ESTIMATES: tuple[Callable[[TrainingTrace, TraceVerdict], TraceAdvice], ...] = (
    host_input_workers,
    host_fused_optimizer,
    host_compile,
    host_long_pauses,
)
"""The estimates of all changes for a CPU."""
