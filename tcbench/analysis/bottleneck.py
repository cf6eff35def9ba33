"""The bottleneck of a cell: the time that each stage of a step needs, who waits for whom, and the verdict. Pure
functions.

A training step is a pipeline of three stages: the input (decoding, in its own threads if the feed prefetches), the host
(which computes on a CPU, and launches kernels on a GPU) and the GPU. In the steady state a step takes at least as long
as the longest stage, or as the sum of two stages that take turns; the rest of a stage's time is idle. This is how the
talk reads its timelines (slides 15 to 32). With many ranks a fourth stage follows backward: the all-reduce of the
gradients. All others wait for it, except for the part that overlaps with backward. This module does not
depend on rungs."""

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
"""The stage that limits a step, or `balanced`."""
VERDICTS: tuple[BoundVerdict, ...] = ("input-bound", "host-bound", "gpu-bound", "network-bound", "balanced")

BALANCED_ABOVE = 0.9
"""Two stages are balanced if the shorter needs more than this fraction of the longer one's time."""

STALLED_LAUNCH_S = 50e-6
"""A launch takes a few microseconds. If it takes this long while the GPU is busy, it waits for room in the launch
queue, that is for the kernel at its head, which takes tens or hundreds of microseconds."""

UNLIKE = 0.1
"""If the phases of a profiled pass differ from the timed step by more than this fraction, the profile does not
represent the timed pass."""

UNSTEADY = 1.25
"""A single trial gives no reliable verdict if its mean step takes more than this multiple of its median step."""

INPUT = "io"
"""The phase in which the host prepares a batch, or fetches one that input threads have prepared."""
INPUT_PHASES = (INPUT, "input")
"""The names of that phase: in sessions, and in programs that mark their steps."""

PASSES = ("forward", "backward", "replay")
"""The phases that pass through the network. Backward always has the most to compute."""

CURVATURE = ("factors", "inverse")
"""The phases of second-order training."""

COSTLIEST = 10
"""The number of kernels that a bottleneck lists."""


@dataclass(frozen=True)
class StageNeeds:
    """Seconds per step that each stage needs if it never waits.

    - `input_s`: the time to make a batch; None if it overlaps with the step and its duration is unknown.
    - `host_s`: the host's other work, without making batches and without the all-reduce.
    - `gpu_s`: the GPU's work without the all-reduce; None without a GPU, or if unknown.
    - `overlapped`: the input has its own threads. Otherwise the host makes the batch before its other work.
    - `network_s`: the part of the all-reduce that overlaps with nothing."""

    input_s: float | None
    host_s: float
    gpu_s: float | None
    overlapped: bool
    network_s: float = 0.0

    @property
    def host_side_s(self) -> float:
        """The seconds per step of the thread that runs the steps, without the all-reduce: `host_s`, and `input_s`
        unless the input has its own threads."""
        return self.host_s + (0.0 if self.overlapped else self.input_s or 0.0)

    @property
    def verdict(self) -> BoundVerdict:
        """The longest stage, or `balanced` if the second needs nearly as much time.

        Stages are compared as if they ran in parallel. With a GPU, input that the host makes and the host's other work
        are one stage, named after the larger of the two. On a CPU, and for the all-reduce, stages may in fact run one
        after the other; the verdict then names the one that takes the largest share of a step."""
        stages: list[tuple[float, BoundVerdict]] = [(self.input_s or 0.0, "input-bound"), (self.host_s, "host-bound")]
        if self.gpu_s is not None and not self.overlapped:
            stages = [(self.host_side_s, "input-bound" if (self.input_s or 0.0) > self.host_s else "host-bound")]
        stages += [(self.gpu_s or 0.0, "gpu-bound"), (self.network_s, "network-bound")]
        (longest_s, verdict), (second_s, _), *_ = sorted(stages, key=lambda stage: -stage[0])
        return "balanced" if second_s > BALANCED_ABOVE * longest_s else verdict


@dataclass(frozen=True)
class Idle:
    """Idle time of the GPU in seconds per step, by what the host did meanwhile.

    - `launching_s`: it was in a phase other than the input, and had not launched the next work.
    - `input_s`: it prepared a batch or waited for one.
    - `synchronising_s`: it waited for the GPU, and had not launched the next work.
    - `other_s`: it was in no phase."""

    launching_s: float
    input_s: float
    synchronising_s: float
    other_s: float


Doubt = Literal["recording", "phases"]
"""Reasons to doubt a bottleneck (`Bottleneck.doubt`)."""

Cause = Literal["launching", "input", "synchronising", "other"]
"""Causes of an idle GPU, as in `Idle`."""


@dataclass(frozen=True)
class Gap:
    """An idle gap of the GPU. `cause` is the cause of the gap's largest part. `phase` is the phase in which the host
    spent most of the gap; None if it was in no phase."""

    begin_s: float
    end_s: float
    cause: Cause
    phase: str | None

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class KernelCost:
    """The cost of all launches of one kernel: launches and seconds per step, and the share of the time of all
    kernels."""

    name: str
    per_step: float
    time_s: float
    share: float


@dataclass(frozen=True)
class DeviceActivity:
    """The activity of a GPU over several steps.

    - `span_s`, `busy_s`: the seconds observed, and those in which any stream was busy.
    - `gaps`: the idle gaps, longest first.
    - `copied_bytes`: bytes per step; None if they were not recorded.
    - `costliest`: the kernels that take the most time, at most `COSTLIEST`, longest first."""

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
        """The fraction of the time in which the GPU was busy."""
        return self.busy_s / self.span_s if self.span_s else 0.0


@dataclass(frozen=True)
class Bottleneck:
    """One cell's verdict and the numbers behind it. Times are seconds per step.

    - `steps`: the number of steps examined; `step_s`: the mean step, over the timeline or in the record's timed pass.
    - `timed_step_s`: the step in the timed pass before the timeline, if known.
    - `phases_are_timed`: the phases come from the timed pass.
    - `io_overlap`: the fraction of the input's work that overlapped with other host phases or the GPU, None if unknown.
    - `waits_for_input_s`, `waits_for_gpu_s`: waiting times of the host.
    - `median_step_s`: known for a cell with one trial.
    - `device`: None without a GPU, and for records, which have no kernels.
    - `rank`: with many ranks, the rank that the others wait for, which `needs` describes; `batch_size` is per rank.
    - `items`: the items in a step of all ranks, if a user's program counts them."""

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
    items: float | None = None

    @property
    def images_per_step(self) -> float:
        return self.items or self.batch_size * self.ranks

    @property
    def images_per_s(self) -> float:
        return self.images_per_step / self.step_s if self.step_s else 0.0

    @property
    def verdict(self) -> BoundVerdict:
        return self.needs.verdict

    @property
    def unsteady(self) -> bool:
        """Whether the cell has a single trial whose mean step time is dominated by a few long steps."""
        return self.median_step_s is not None and self.step_s > UNSTEADY * self.median_step_s

    @property
    def dominant(self) -> PhaseCost | None:
        """The longest computing phase of a CPU cell that is host-bound; None for other cells."""
        if self.on_gpu or self.verdict != "host-bound":
            return None
        computing = [phase for phase in self.phases if phase.name not in (*INPUT_PHASES, ALLREDUCE)]
        longest = max(computing, key=lambda phase: phase.host_s, default=None)
        return longest if longest and longest.host_s > 0 else None

    @property
    def phases_s(self) -> float:
        """The host's time in all phases of a step."""
        return sum(phase.host_s for phase in self.phases)

    @property
    def doubt(self) -> Doubt | None:
        """Why the phases are doubtful, or None. `recording`: recording the timeline made the steps longer. `phases`:
        the host's phases in the profiled pass do not add up to a timed step; with a GPU they may add up to less."""
        if self.timed_step_s is not None and self.step_s - self.timed_step_s > UNLIKE * self.timed_step_s:
            return "recording"
        excess_s = self.phases_s - self.step_s
        excess_s = excess_s if self.on_gpu else abs(excess_s)
        return "phases" if self.source == "record" and excess_s > UNLIKE * self.step_s else None


# -- from a timeline -----------------------------------------------------------------------------------------------


def explain_timeline(timeline: Timeline) -> Bottleneck:
    """Return the bottleneck of a timeline, over its whole steps.

    The observed time extends from the begin of the first step to the end of the last one, or to the end of the last GPU
    work that began in a step or was launched by one, since a GPU may lag behind its host. A phase's time on the host
    excludes waiting for the GPU. If the input has its own threads, the host's phase `io` consists of waiting for input.

    A timeline made from a record is explained by that record (`explain_records`) if its phases were measured on a GPU
    or in the timed steps. Raises SelectionError for a timeline without steps."""
    record = timeline.record
    measured = record.measurement if record else None
    from_record = timeline.spans_in("gpu") or (measured and measured.phases_are_timed)
    if timeline.source == "ranges" and record is not None and from_record:
        return explain_records([record])
    steps = timeline.steps
    if not steps:
        raise SelectionError(
            f"{timeline.label}: this timeline contains no steps; expected the ranges that `tcbench profile` records"
        )
    n = len(steps)
    begin_s, host_end_s = timeline.begin_s, timeline.end_s
    on_device = _gpu_spans(timeline, begin_s, host_end_s)
    extent = [(begin_s, max([host_end_s, *(span.end_s for span in on_device)]))]

    def covered(spans: Iterable[Span]) -> Intervals:
        union = intervals.union((span.begin_s, span.end_s) for span in spans)
        return intervals.intersection(union, extent)

    busy, io_threads = covered(on_device), covered(timeline.spans_in("io"))
    host_phases = timeline.spans_in("host", "phase")
    on_host = [span for span in host_phases if span.end_s > begin_s and span.begin_s < host_end_s]
    names = dict.fromkeys([*timeline.phases, *(span.name for span in host_phases)])
    in_phase = {name: covered(span for span in on_host if span.name == name) for name in names}
    waiting = _waiting_times(timeline, busy, covered)

    phases = tuple(
        PhaseCost(
            name=name,
            host_s=intervals.length(intervals.difference(when, waiting)) / n,
            device_s=intervals.length(covered(s for s in on_device if s.phase == name)) / n if on_device else None,
        )
        for name, when in in_phase.items()
    )
    host_io_s = sum(phase.host_s for phase in phases if phase.name in INPUT_PHASES)
    network_s, network_host_s, network_gpu_s = _allreduce_times(phases)
    overlapped = bool(io_threads)
    input_work = io_threads or in_phase.get(INPUT, [])
    other_work = intervals.union([*busy, *(_without_input(in_phase) if overlapped else ())])
    input_work_s, overlap_s = map(intervals.length, (input_work, intervals.intersection(input_work, other_work)))
    timed_s = measured.counted_times_s if measured else ()
    return Bottleneck(
        label=timeline.label,
        on_gpu=bool(on_device),
        batch_size=timeline.batch_size,
        source="timeline",
        steps=n,
        step_s=intervals.length(extent) / n,
        needs=StageNeeds(
            input_s=intervals.length(io_threads) / n if overlapped else host_io_s,
            host_s=sum(phase.host_s for phase in phases) - host_io_s - network_host_s,
            gpu_s=max(0.0, intervals.length(busy) / n - network_gpu_s) if on_device else None,
            overlapped=overlapped,
            network_s=network_s,
        ),
        phases=phases,
        io_overlap=overlap_s / input_work_s if input_work_s else None,
        waits_for_input_s=host_io_s if overlapped else 0.0,
        waits_for_gpu_s=intervals.length(waiting) / n if on_device else None,
        device=_device_activity(on_device, busy, in_phase, waiting, extent, n) if on_device else None,
        timed_step_s=statistics.fmean(timed_s) if timed_s else None,
    )


def _allreduce_times(phases: Sequence[PhaseCost]) -> tuple[float, float, float]:
    """Return the seconds per step of the all-reduce, the part of them that the host's time includes, and the part that
    the GPU's time includes.

    NCCL's kernels run on the GPU, and the host only launches them, which stays part of its other work. MPI is called on
    the host, and the GPU only copies. So the longer of the two times is the exchange."""
    allreduce = next((phase for phase in phases if phase.name == ALLREDUCE), PhaseCost(ALLREDUCE, 0.0))
    host_s, device_s = allreduce.host_s, allreduce.device_s or 0.0
    return max(host_s, device_s), host_s if host_s >= device_s else 0.0, device_s


def _without_input(in_phase: Mapping[str, Intervals]) -> Intervals:
    """Return the times at which the host was in any phase except the input, given the times of each phase."""
    return intervals.union(i for name, when in in_phase.items() if name != INPUT for i in when)


def _gpu_spans(timeline: Timeline, begin_s: float, end_s: float) -> list[Span]:
    """Return the GPU's spans that end after `begin_s`, if a step launched them or they begin before `end_s`. `begin_s`
    and `end_s` are the begin of the first step and the end of the last one on the host."""
    numbers = {step.step for step in timeline.steps if step.step is not None}
    spans = (span for span in timeline.spans_in("gpu") if span.end_s > begin_s)
    return [span for span in spans if span.step in numbers or span.begin_s < end_s]


def waits(call: str) -> bool:
    """Return whether a CUDA call blocks until the GPU has finished something: it synchronises, or copies
    synchronously."""
    return "Synchronize" in call or ("Memcpy" in call and "Async" not in call)


def _waiting_times(timeline: Timeline, busy: Intervals, covered: Callable[[Iterable[Span]], Intervals]) -> Intervals:
    """Return the times at which the host waited for the GPU: in blocking calls, and in launches while the launch queue
    was full. `busy` holds the times at which the GPU was busy; `covered` returns the observed time that spans cover."""
    calls = timeline.spans_in("host", "api")
    stalled = [s for s in calls if "Launch" in s.name and s.duration_s >= STALLED_LAUNCH_S]
    queue_full = intervals.intersection(covered(stalled), busy)
    return intervals.union([*covered(span for span in calls if waits(span.name)), *queue_full])


def _device_activity(
    on_device: Sequence[Span],
    busy: Intervals,
    in_phase: Mapping[str, Intervals],
    waiting: Intervals,
    extent: Intervals,
    n: int,
) -> DeviceActivity:
    """Return the activity of the GPU over the `n` steps in `extent`, from its spans `on_device` and the times at which
    it was busy, the host was in each phase, and the host was waiting for it."""
    idle = intervals.difference(extent, busy)
    reading = intervals.difference(in_phase.get(INPUT, []), waiting)
    launching = intervals.difference(intervals.difference(_without_input(in_phase), waiting), reading)
    causes: dict[Cause, Intervals] = {"launching": launching, "input": reading, "synchronising": waiting}
    launching_s, input_s, synchronising_s = (
        intervals.length(intervals.intersection(idle, when)) / n for when in causes.values()
    )
    other_s = max(0.0, intervals.length(idle) / n - launching_s - input_s - synchronising_s)
    kernels = [span for span in on_device if span.kind in ("kernel", "graph")]
    copies = [span for span in on_device if span.kind in ("copy", "memset")]
    copied_bytes = [copy.bytes for copy in copies if copy.bytes is not None]
    return DeviceActivity(
        span_s=intervals.length(extent),
        busy_s=intervals.length(busy),
        idle=Idle(launching_s, input_s, synchronising_s, other_s),
        gaps=_idle_gaps(idle, causes, in_phase),
        kernels_per_step=len(kernels) / n,
        copies_per_step=len(copies) / n,
        copied_bytes=sum(copied_bytes) / n if copied_bytes else None,
        costliest=_costliest(kernels, n),
    )


def _idle_gaps(
    idle: Intervals, causes: Mapping[Cause, Intervals], in_phase: Mapping[str, Intervals]
) -> tuple[Gap, ...]:
    """Return all idle gaps of the GPU, longest first. `causes` holds the times at which each cause applied, `in_phase`
    the times at which the host was in each phase."""
    shares = {cause: intervals.covered(idle, when) for cause, when in causes.items()}
    phase_shares = {name: intervals.covered(idle, when) for name, when in in_phase.items()}
    gaps = []
    for i, (begin_s, end_s) in enumerate(idle):
        spent_s: dict[Cause, float] = {cause: share[i] for cause, share in shares.items()}
        spent_s["other"] = end_s - begin_s - sum(spent_s.values())
        cause = max(spent_s, key=lambda c: spent_s[c])
        phase_spent_s = {name: share[i] for name, share in phase_shares.items() if share[i] > 0}
        gaps.append(Gap(begin_s, end_s, cause, max(phase_spent_s, key=lambda p: phase_spent_s[p], default=None)))
    return tuple(sorted(gaps, key=lambda gap: -gap.duration_s))


def _costliest(kernels: Sequence[Span], n: int) -> tuple[KernelCost, ...]:
    """Return the costs of the `COSTLIEST` kernels that take the most time over `n` steps, longest first."""
    spent = grouped((span.name, span.duration_s) for span in kernels)
    total_s = sum(map(sum, spent.values()))
    by_time = sorted(spent.items(), key=lambda kernel: -sum(kernel[1]))[:COSTLIEST]
    return tuple(
        KernelCost(name, len(times) / n, sum(times) / n, sum(times) / total_s if total_s else 0.0)
        for name, times in by_time
    )


# -- from records --------------------------------------------------------------------------------------------------


def explain_records(records: Sequence[Record]) -> Bottleneck:
    """Return the bottleneck of a cell, from the records of all its successful trials.

    The step time is that of the timed pass, and the phases are those of `phase_costs`.

    - If the trials recorded the GPU's working time, the GPU needs that time. Otherwise the GPU is assumed to need the
      whole step if host and input do not fill it; if they do, its time is unknown.
    - A feed with `prefetch_depth` overlaps with the step. Its duration is known only if the host waits for it.

    Raises ValueError without records, or without a profiled pass."""
    measured = [record.measurement for record in records if record.measurement is not None]
    if not measured or not all(m.profiled_steps for m in measured):
        raise ValueError("nothing was measured")
    cell = records[0].cell
    on_gpu = cell.device != "cpu"
    timed_step_s = step_s(measured)
    trials_busy_s = [m.busy_s for m in measured if m.busy_s is not None]
    busy_s = statistics.fmean(trials_busy_s) if trials_busy_s else None
    may_wait = on_gpu and (busy_s is None or busy_s >= BALANCED_ABOVE * timed_step_s)
    phases = phase_costs(measured, waits=may_wait)
    overlapped = any(m.prefetch_depth for m in measured)
    io_s = sum(phase.host_s for phase in phases if phase.name in INPUT_PHASES)
    network_s, network_host_s, network_gpu_s = _allreduce_times(phases)
    host_s = sum(phase.host_s for phase in phases) - io_s - network_host_s
    starved = overlapped and io_s > (1 - BALANCED_ABOVE) * timed_step_s
    input_s = io_s if not overlapped else max(timed_step_s, io_s) if starved else None
    host_side_s = host_s + (0.0 if overlapped else io_s)
    filled = starved or host_side_s >= BALANCED_ABOVE * timed_step_s
    gpu_s = busy_s if busy_s is not None or not on_gpu or filled else timed_step_s
    gpu_s = None if gpu_s is None else max(0.0, gpu_s - network_gpu_s)
    return Bottleneck(
        label=cell.label,
        on_gpu=on_gpu,
        batch_size=cell.batch_size,
        source="record",
        steps=sum(m.profiled_steps for m in measured),
        step_s=timed_step_s,
        needs=StageNeeds(input_s, host_s, gpu_s, overlapped, network_s),
        phases=phases,
        io_overlap=None if overlapped or on_gpu else 0.0,
        waits_for_input_s=io_s if overlapped else 0.0,
        waits_for_gpu_s=None,
        device=None,
        ranks=cell.ranks,
        rank=critical_rank(measured[0].ranks).rank if measured[0].ranks else 0,
        items=measured[0].items or None,
        phases_are_timed=all(m.phases_are_timed for m in measured),
        median_step_s=statistics.median(measured[0].counted_times_s) if len(measured) == 1 else None,
    )
