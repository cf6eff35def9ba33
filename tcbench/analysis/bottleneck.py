"""The bottleneck of a cell: the time each stage of a step needs, who waits for whom, and the verdict. Pure functions.

A training step is a pipeline of three stages: the input (decoding, in threads of its own where the feed prefetches),
the host (which computes on a CPU, and launches kernels on a GPU) and the GPU. In the steady state a step takes at
least as long as the longest stage, and the sum of two that take turns; what the others wait is their idle time. This
is the talk's reading of its timelines (slides 15 to 32). On many ranks a fourth stage follows backward, the all-reduce
of the gradients: all others wait for it, but for what an exchange hides beside backward. Knows nothing of rungs.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis import intervals
from tcbench.analysis.intervals import Intervals
from tcbench.analysis.phases import ALLREDUCE, PhaseCost, critical_rank, phase_costs, step_s
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.core.record import Record
from tcbench.core.timeline import Span, Timeline

BoundVerdict = Literal["input-bound", "host-bound", "gpu-bound", "network-bound", "balanced"]
VERDICTS: tuple[BoundVerdict, ...] = ("input-bound", "host-bound", "gpu-bound", "network-bound", "balanced")

BALANCED_ABOVE = 0.9
"""Two stages are balanced when the shorter needs more than this share of the longer one's time."""

STALLED_LAUNCH_S = 50e-6
"""A launch takes some microseconds. One that takes this long while the GPU is busy waits for room in its queue: for the
kernel at its head, which takes some tens or hundreds of microseconds."""

UNLIKE = 0.1
"""A profiled pass was not like the timed one where its phases are apart from a step by more than this share of it."""

UNSTEADY = 1.25
"""One trial is no ground for a verdict where its mean step takes so many times its median step."""

INPUT = "io"
"""The phase in which the host prepares a batch, or takes over one that threads of the input's have prepared."""

PASSES = ("forward", "backward", "replay")
"""The phases that pass through the network, of which backward always has the most to compute."""

CURVATURE = ("factors", "inverse")
"""The phases of training by second order."""

COSTLIEST = 10


@dataclass(frozen=True)
class StageNeeds:
    """Seconds per step of each stage if it never waited.

    `input_s`: making a batch, None where it happens beside the step and nothing tells how long it takes. `overlapped`:
    the input has threads of its own; else the host makes the batch, before everything else in `host_s`, which
    never holds it. `gpu_s`: None without a GPU, or where nothing tells. `network_s`: the all-reduce, as much of it as
    runs beside nothing; part of none of the others.
    """

    input_s: float | None
    host_s: float
    gpu_s: float | None
    overlapped: bool
    network_s: float = 0.0

    @property
    def host_side_s(self) -> float:
        """All that the thread that runs the steps has to do."""
        return self.host_s + (0.0 if self.overlapped else self.input_s or 0.0)

    @property
    def verdict(self) -> BoundVerdict:
        """The stage that needs the most time; `balanced` when the second needs nearly as much.

        On a CPU, where nothing runs beside the host but an overlapped input, input and computation are compared even
        when they take turns: `host-bound` then means that computing takes most of the step. So it is with the
        all-reduce everywhere: `network-bound` means that ranks spend more of a step on it than on anything else.
        """
        stages: list[tuple[float, BoundVerdict]] = [(self.input_s or 0.0, "input-bound"), (self.host_s, "host-bound")]
        if self.gpu_s is not None and not self.overlapped:
            stages = [(self.host_side_s, "input-bound" if (self.input_s or 0.0) > self.host_s else "host-bound")]
        stages += [(self.gpu_s or 0.0, "gpu-bound"), (self.network_s, "network-bound")]
        (longest_s, verdict), (second_s, _), *_ = sorted(stages, key=lambda stage: -stage[0])
        return "balanced" if second_s > BALANCED_ABOVE * longest_s else verdict


@dataclass(frozen=True)
class Idle:
    """Why the GPU had nothing to do, seconds per step: the host was launching late, preparing or waiting for input,
    waiting for the GPU itself (synchronising, and what followed had not been launched), or none of its phases ran."""

    launching_s: float
    input_s: float
    synchronising_s: float
    other_s: float


Doubt = Literal["recording", "phases"]
"""Reasons to doubt a bottleneck (`Bottleneck.doubt`)."""

Cause = Literal["launching", "input", "synchronising", "other"]
"""Why a GPU was idle, as `Idle` has them."""


@dataclass(frozen=True)
class Gap:
    """A stretch without GPU work. `cause` is that of its greatest part; `phase` the one the host was in longest."""

    begin_s: float
    end_s: float
    cause: Cause
    phase: str | None

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class KernelCost:
    """All launches of one kernel: `share` of the time of all kernels."""

    name: str
    per_step: float
    time_s: float
    share: float


@dataclass(frozen=True)
class DeviceActivity:
    """The work of a GPU over `span_s`: `busy_s` + `idle_s`. What several streams do at once counts once. `gaps`,
    longest first. `copied_bytes` is per step, None where the recording does not tell."""

    span_s: float
    busy_s: float
    idle: Idle
    gaps: tuple[Gap, ...]
    kernels_per_step: float
    copies_per_step: float
    copied_bytes: float | None
    costliest: tuple[KernelCost, ...]

    @property
    def busy_share(self) -> float:
        return self.busy_s / self.span_s if self.span_s else 0.0


@dataclass(frozen=True)
class Bottleneck:
    """One cell's verdict and the numbers behind it; times are seconds per step.

    `steps` were looked at. `step_s` is what a step took: all over the timeline, or in the record's timed pass.
    `timed_step_s`: in the timed pass before the timeline, where that is known. `phases_are_timed`: they are those of
    the timed pass. `io_overlap` is the share of the input's work during which something else was going on too (the
    host's other phases or the GPU); None where nothing tells. `waits_for_input_s` and `waits_for_gpu_s` are the host's.
    `median_step_s` is known for a cell with one trial. `device` is None without a GPU, and for a record, which has no
    kernels. Of a cell on many ranks these are the needs
    of the rank that the others wait for, `batch_size` is that of each, and `rank` says which it is.
    """

    label: str
    on_gpu: bool
    batch_size: int
    source: Literal["timeline", "record"]
    steps: int
    step_s: float
    needs: StageNeeds
    phases: tuple[PhaseCost, ...]
    io_overlap: float | None
    waits_for_input_s: float
    waits_for_gpu_s: float | None
    device: DeviceActivity | None
    ranks: int = 1
    rank: int = 0
    phases_are_timed: bool = False
    timed_step_s: float | None = None
    median_step_s: float | None = None

    @property
    def images_per_step(self) -> int:
        return self.batch_size * self.ranks

    @property
    def images_per_s(self) -> float:
        return self.images_per_step / self.step_s if self.step_s else 0.0

    @property
    def verdict(self) -> BoundVerdict:
        return self.needs.verdict

    @property
    def unsteady(self) -> bool:
        """Whether one trial is all there is, and a few long steps make its mean: another may have another verdict."""
        return self.median_step_s is not None and self.step_s > UNSTEADY * self.median_step_s

    @property
    def dominant(self) -> PhaseCost | None:
        """Of a CPU that computes most of a step, the phase that takes longest."""
        if self.on_gpu or self.verdict != "host-bound":
            return None
        computing = [phase for phase in self.phases if phase.name not in (INPUT, ALLREDUCE)]
        longest = max(computing, key=lambda phase: phase.host_s, default=None)
        return longest if longest and longest.host_s > 0 else None

    @property
    def phases_s(self) -> float:
        """The host's time in all phases of a step."""
        return sum(phase.host_s for phase in self.phases)

    @property
    def doubt(self) -> Doubt | None:
        """Why the phases are doubtful: recording made the steps of a timeline longer, or the host's phases in a
        record's profiled pass do not add up to a timed step. A GPU's host may need less than the step."""
        if self.timed_step_s is not None and self.step_s - self.timed_step_s > UNLIKE * self.timed_step_s:
            return "recording"
        apart_s = self.phases_s - self.step_s
        apart_s = apart_s if self.on_gpu else abs(apart_s)
        return "phases" if self.source == "record" and apart_s > UNLIKE * self.step_s else None


# -- from a timeline -----------------------------------------------------------------------------------------------


def summarise(timeline: Timeline) -> Bottleneck:
    """Summarise a timeline, over its whole steps: from the begin of its first step to the end of its last one, or of
    the last work on the GPU that began or was caused in a step, since a GPU may lag behind its host. A phase's time on
    the host leaves out what the host waits for the GPU. Where the input has threads of its own the host's io phase is
    waiting for input. A timeline of a record's phases, on a GPU or of timed steps, says no more than the record
    (`explain_records`). Raises SelectionError for a timeline without steps."""
    record = timeline.record
    measured = record.measurement if record else None
    from_record = timeline.spans_in("gpu") or (measured and measured.phases_are_timed)
    if timeline.source == "ranges" and record is not None and from_record:
        return explain_records([record])
    steps = timeline.steps
    if not steps:
        raise SelectionError(
            f"{timeline.label}: no steps in this timeline; expected ranges that `tcbench profile` leaves"
        )
    n = len(steps)
    begin_s, host_end_s = timeline.begin_s, timeline.end_s
    on_device = _of_steps(timeline, begin_s, host_end_s)
    whole = [(begin_s, max([host_end_s, *(span.end_s for span in on_device)]))]

    def covered(spans: Iterable[Span]) -> Intervals:
        union = intervals.union((span.begin_s, span.end_s) for span in spans)
        return intervals.intersection(union, whole)

    busy, io_threads = covered(on_device), covered(timeline.spans_in("io"))
    host_phases = timeline.spans_in("host", "phase")
    on_host = [span for span in host_phases if span.end_s > begin_s and span.begin_s < host_end_s]
    names = dict.fromkeys([*timeline.phases, *(span.name for span in host_phases)])
    in_phase = {name: covered(span for span in on_host if span.name == name) for name in names}
    waiting = _waiting(timeline, busy, covered)

    phases = tuple(
        PhaseCost(
            name=name,
            host_s=intervals.length(intervals.difference(when, waiting)) / n,
            device_s=intervals.length(covered(s for s in on_device if s.phase == name)) / n if on_device else None,
        )
        for name, when in in_phase.items()
    )
    host_io_s = sum(phase.host_s for phase in phases if phase.name == INPUT)
    network_s, network_host_s, network_gpu_s = _network(phases)
    others = _but_input(in_phase)
    overlapped = bool(io_threads)
    making = io_threads or in_phase.get(INPUT, [])
    beside = intervals.union([*busy, *(others if overlapped else ())])
    made_s = intervals.length(making)
    timed_s = measured.counted_times_s if measured else ()
    return Bottleneck(
        label=timeline.label,
        on_gpu=bool(on_device),
        batch_size=timeline.batch_size,
        source="timeline",
        steps=n,
        step_s=intervals.length(whole) / n,
        needs=StageNeeds(
            input_s=intervals.length(io_threads) / n if overlapped else host_io_s,
            host_s=sum(phase.host_s for phase in phases) - host_io_s - network_host_s,
            gpu_s=max(0.0, intervals.length(busy) / n - network_gpu_s) if on_device else None,
            overlapped=overlapped,
            network_s=network_s,
        ),
        phases=phases,
        io_overlap=intervals.length(intervals.intersection(making, beside)) / made_s if made_s else None,
        waits_for_input_s=host_io_s if overlapped else 0.0,
        waits_for_gpu_s=intervals.length(waiting) / n if on_device else None,
        device=_activity(on_device, busy, in_phase, waiting, whole, n) if on_device else None,
        timed_step_s=statistics.fmean(timed_s) if timed_s else None,
    )


def _network(phases: Sequence[PhaseCost]) -> tuple[float, float, float]:
    """The all-reduce of a step, and how much of what the host and the GPU do is that. NCCL's kernels run on the GPU,
    and the host only launches them; MPI is called on the host, and a GPU only copies: the longer of the two is the
    exchange."""
    allreduce = next((phase for phase in phases if phase.name == ALLREDUCE), PhaseCost(ALLREDUCE, 0.0))
    host_s, device_s = allreduce.host_s, allreduce.device_s or 0.0
    return max(host_s, device_s), host_s if host_s >= device_s else 0.0, device_s


def _but_input(in_phase: Mapping[str, Intervals]) -> Intervals:
    return intervals.union(i for name, when in in_phase.items() if name != INPUT for i in when)


def _of_steps(timeline: Timeline, begin_s: float, end_s: float) -> list[Span]:
    """The GPU's work that steps caused, or that ran while they did."""
    numbers = {step.step for step in timeline.steps if step.step is not None}
    spans = (span for span in timeline.spans_in("gpu") if span.end_s > begin_s)
    return [span for span in spans if span.step in numbers or span.begin_s < end_s]


def waits(call: str) -> bool:
    """Whether a CUDA call returns only when the GPU has done something: it synchronises, or copies and blocks."""
    return "Synchronize" in call or ("Memcpy" in call and "Async" not in call)


def _waiting(timeline: Timeline, busy: Intervals, covered: Callable[[Iterable[Span]], Intervals]) -> Intervals:
    """The times at which the host waited for the GPU: in calls, and in launches while its queue was full."""
    calls = timeline.spans_in("host", "api")
    stalled = [s for s in calls if "Launch" in s.name and s.duration_s >= STALLED_LAUNCH_S]
    queue_full = intervals.intersection(covered(stalled), busy)
    return intervals.union([*covered(span for span in calls if waits(span.name)), *queue_full])


def _activity(
    on_device: Sequence[Span],
    busy: Intervals,
    in_phase: Mapping[str, Intervals],
    waiting: Intervals,
    whole: Intervals,
    n: int,
) -> DeviceActivity:
    idle = intervals.difference(whole, busy)
    reading = intervals.difference(in_phase.get(INPUT, []), waiting)
    launching = intervals.difference(intervals.difference(_but_input(in_phase), waiting), reading)
    causes: dict[Cause, Intervals] = {"launching": launching, "input": reading, "synchronising": waiting}
    launching_s, input_s, synchronising_s = (
        intervals.length(intervals.intersection(idle, when)) / n for when in causes.values()
    )
    other_s = max(0.0, intervals.length(idle) / n - launching_s - input_s - synchronising_s)
    kernels = [span for span in on_device if span.kind in ("kernel", "graph")]
    copies = [span for span in on_device if span.kind in ("copy", "memset")]
    known = [span.bytes for span in copies if span.bytes is not None]
    return DeviceActivity(
        span_s=intervals.length(whole),
        busy_s=intervals.length(busy),
        idle=Idle(launching_s, input_s, synchronising_s, other_s),
        gaps=_gaps(idle, causes, in_phase),
        kernels_per_step=len(kernels) / n,
        copies_per_step=len(copies) / n,
        copied_bytes=sum(known) / n if known else None,
        costliest=_costliest(kernels, n),
    )


def _gaps(idle: Intervals, causes: Mapping[Cause, Intervals], in_phase: Mapping[str, Intervals]) -> tuple[Gap, ...]:
    """Every stretch of idling with what the host did in it, the longest first."""
    shares = {cause: intervals.covered(idle, when) for cause, when in causes.items()}
    phase_shares = {name: intervals.covered(idle, when) for name, when in in_phase.items()}
    gaps = []
    for i, (begin_s, end_s) in enumerate(idle):
        spent_s: dict[Cause, float] = {cause: share[i] for cause, share in shares.items()}
        spent_s["other"] = end_s - begin_s - sum(spent_s.values())
        cause = max(spent_s, key=lambda c: spent_s[c])
        in_it = {name: share[i] for name, share in phase_shares.items() if share[i] > 0}
        gaps.append(Gap(begin_s, end_s, cause, max(in_it, key=lambda p: in_it[p], default=None)))
    return tuple(sorted(gaps, key=lambda gap: -gap.duration_s))


def _costliest(kernels: Sequence[Span], n: int) -> tuple[KernelCost, ...]:
    spent = grouped((span.name, span.duration_s) for span in kernels)
    total_s = sum(map(sum, spent.values()))
    by_time = sorted(spent.items(), key=lambda item: -sum(item[1]))[:COSTLIEST]
    return tuple(
        KernelCost(name, len(times) / n, sum(times) / n, sum(times) / total_s if total_s else 0.0)
        for name, times in by_time
    )


# -- from records --------------------------------------------------------------------------------------------------


def explain_records(records: Sequence[Record]) -> Bottleneck:
    """Explain a cell by its trials that are ok, together. Raises ValueError without one, or without a profiled pass.

    The step is the timed pass's, and phases are as everywhere (`phase_costs`). Where the device tells how long it
    works, that is what the GPU needs, and in a step that is longer the host did not wait for it. Elsewhere kernels are
    not seen: the GPU fills the step where the host does not, and else needs less, nobody knows how much. A feed with
    `prefetch_depth` works beside the step: how long it takes is known only when the host waits for it.
    """
    measured = [record.measurement for record in records if record.measurement is not None]
    if not measured or not all(m.profiled_steps for m in measured):
        raise ValueError("nothing was measured")
    cell = records[0].cell
    on_gpu = cell.device != "cpu"
    whole_s = step_s(measured)
    busy_s = statistics.fmean(told) if (told := [m.busy_s for m in measured if m.busy_s is not None]) else None
    may_wait = on_gpu and (busy_s is None or busy_s >= BALANCED_ABOVE * whole_s)
    phases = phase_costs(measured, waits=may_wait)
    overlapped = any(m.prefetch_depth for m in measured)
    io_s = sum(phase.host_s for phase in phases if phase.name == INPUT)
    network_s, network_host_s, network_gpu_s = _network(phases)
    host_s = sum(phase.host_s for phase in phases) - io_s - network_host_s
    starved = overlapped and io_s > (1 - BALANCED_ABOVE) * whole_s
    input_s = io_s if not overlapped else max(whole_s, io_s) if starved else None
    host_side_s = host_s + (0.0 if overlapped else io_s)
    filled = starved or host_side_s >= BALANCED_ABOVE * whole_s
    gpu_s = busy_s if busy_s is not None or not on_gpu or filled else whole_s
    gpu_s = None if gpu_s is None else max(0.0, gpu_s - network_gpu_s)
    return Bottleneck(
        label=cell.label,
        on_gpu=on_gpu,
        batch_size=cell.batch_size,
        source="record",
        steps=sum(m.profiled_steps for m in measured),
        step_s=whole_s,
        needs=StageNeeds(input_s, host_s, gpu_s, overlapped, network_s),
        phases=phases,
        io_overlap=None if overlapped or on_gpu else 0.0,
        waits_for_input_s=io_s if overlapped else 0.0,
        waits_for_gpu_s=None,
        device=None,
        ranks=cell.ranks,
        rank=critical_rank(measured[0].ranks).rank if measured[0].ranks else 0,
        phases_are_timed=all(m.phases_are_timed for m in measured),
        median_step_s=statistics.median(measured[0].counted_times_s) if len(measured) == 1 else None,
    )
