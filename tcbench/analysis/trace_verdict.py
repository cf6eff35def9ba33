"""The limit of the training that a trace recorded. Pure functions.

The window's time is divided into shares that add up to 1: the GPU's own work, communication that overlaps with none of
it, recomputation of activations that overlaps with neither, and idle time by cause. The verdict is the largest of four
sums of these. It therefore cannot contradict them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis import intervals
from tcbench.analysis.kernel_kinds import kernel_kind
from tcbench.analysis.trace_causes import Cover, IdleCause, IdleGap, idle_gaps, total_causes
from tcbench.analysis.trace_window import StepSource, Window, find_window, repeated_name
from tcbench.core.recording import Activity, ApiCall
from tcbench.core.training_trace import Collective, Overhead, TrainingTrace

TraceLimit = Literal[
    "input-bound", "host-bound", "gpu-bound", "compute-bound", "network-bound", "balanced", "cannot be told"
]

HOST_CAUSES: tuple[IdleCause, ...] = ("synchronisation", "launch_call", "operator", "python")
"""The causes of idle time that count as the host's."""

BALANCED_ABOVE = 0.95
"""The limit is balanced if the second largest share is more than this part of the largest."""

MOST_EARLY = 0.01
"""The largest share of launched work that may begin before its launch, in a trace with one clock."""

LEAST_ACTIVITIES = 2
"""A window without steps that has less work of the GPU than this does not tell a limit."""

_DEVICE: tuple[IdleCause, ...] = ("dispatch", "stream_wait")

OUTSIDE = "outside of ranges"
BACKWARD = "backward"


@dataclass(frozen=True)
class PhaseShare:
    """A phase's part of the window: the GPU's work that was launched in it, and the idle time before that work. On a
    CPU: the operators that began in it, the time in operators, and the other time."""

    name: str
    launches: int
    work_ns: int
    idle_ns: int


@dataclass(frozen=True)
class TraceVerdict:
    """The verdict on a trace, with the times that it rests on, in nanoseconds of the window.

    - `busy_ns`: the time in which anything ran on the device; `communication_ns`: the time of kernels that move data
      between GPUs; `exposed_ns`: the part of it that overlaps with no work but recomputation; `recomputation_ns`: the
      recomputation of activations that overlaps with no other work and no communication.
    - `recording_ns`: the length of the whole recording; `devices`: the number of GPUs in it, 0 if the CPU computes.
    - `launches`: the calls that launched the work of the window; on a CPU the outermost operators.
    - `clocks_differ`: work begins before its launch, so that the causes of idle time are not known.
    - `window`, `gaps`: the window that was judged, and its idle time.
    - `bus_bytes_per_s`: the bus bandwidth of the largest all-reduces, None if their sizes are not in the trace.
    """

    window: Window
    gaps: tuple[IdleGap, ...]
    limit: TraceLimit
    clocks_differ: bool
    device_name: str
    source: StepSource
    step_name: str
    n_steps: int
    window_ns: int
    recording_ns: int
    devices: int
    busy_ns: int
    communication_ns: int
    exposed_ns: int
    recomputation_ns: int
    causes: Mapping[IdleCause, int]
    launches: int
    phases: tuple[PhaseShare, ...]
    bus_bytes_per_s: float | None
    overheads: tuple[Overhead, ...]
    ranks: int
    invalid_events: int

    @property
    def is_on_cpu(self) -> bool:
        """Whether the CPU computes."""
        return not self.devices

    @property
    def work_ns(self) -> int:
        """The time in which the GPU computed or copied, without recomputation; on a CPU the time in operators."""
        return self.busy_ns - self.exposed_ns - self.recomputation_ns

    @property
    def idle_ns(self) -> int:
        """The time in which nothing ran on the device."""
        return self.window_ns - self.busy_ns

    @property
    def step_ns(self) -> float | None:
        """The mean step, None if no steps were found."""
        return self.window_ns / self.n_steps if self.n_steps else None

    @property
    def launches_per_step(self) -> float | None:
        """Launching calls per step, None if no steps were found."""
        return self.launches / self.n_steps if self.n_steps else None

    def per_step_s(self, time_ns: float) -> float:
        """Return a time of the window in seconds per step, or of the whole window if no steps were found."""
        return time_ns * 1e-9 / (self.n_steps or 1)

    def share(self, time_ns: float) -> float:
        """Return a time as a share of the window."""
        return time_ns / self.window_ns if self.window_ns else 0.0


def judge(trace: TrainingTrace) -> TraceVerdict | None:
    """Return the verdict on a trace, or None if the trace has no work of a GPU."""
    window = find_window(trace)
    if window is None or not window.length_ns:
        return None
    recomputed = recomputed_work(trace, window)
    communication = [each for each in window.activities if is_communication(each)]
    work = [each for each in window.activities if not is_communication(each) and id(each) not in recomputed]
    work_ns, progress_ns, busy_ns = (
        round(intervals.length(busy_time(window, activities)))
        for activities in (work, [*work, *communication], window.activities)
    )
    gaps = tuple(idle_gaps(trace, window))
    causes = total_causes(gaps)
    limit = largest_limit(work_ns + busy_ns - progress_ns, progress_ns - work_ns, causes)
    launched = [(each, launch) for each, launch in zip(window.activities, window.launches, strict=True) if launch]
    early = sum(each.begin_ns < launch.begin_ns for each, launch in launched)
    clocks_differ = early > MOST_EARLY * len(launched)
    is_too_little = not window.steps and len(window.activities) < LEAST_ACTIVITIES
    return TraceVerdict(
        window=window,
        gaps=gaps,
        limit="cannot be told" if is_too_little or clocks_differ else limit,
        clocks_differ=clocks_differ,
        device_name=trace.device_names.get(window.device, trace.device_name),
        source=window.source,
        step_name=window.step_name,
        n_steps=len(window.steps),
        window_ns=window.length_ns,
        recording_ns=trace.end_ns - trace.begin_ns,
        devices=len({activity.device for activity in trace.activities}),
        busy_ns=busy_ns,
        communication_ns=round(intervals.length(busy_time(window, communication))),
        exposed_ns=progress_ns - work_ns,
        recomputation_ns=busy_ns - progress_ns,
        causes=causes,
        launches=len({(launch.process, launch.correlation) for _, launch in launched}),
        phases=_phases(trace, window, gaps),
        bus_bytes_per_s=_bus_bandwidth(trace, window),
        overheads=trace.overheads,
        ranks=trace.ranks,
        invalid_events=trace.invalid_events,
    )


def is_communication(activity: Activity) -> bool:
    """Return whether an activity is a kernel that moves data between GPUs."""
    return activity.kind == "kernel" and kernel_kind(activity.name) == "communication"


def recomputed_work(trace: TrainingTrace, window: Window) -> set[int]:
    """Return the ids of the activities that were launched while activations were recomputed."""
    times = {thread: Cover(parts) for thread, parts in trace.recomputation.items()}
    return {
        id(activity)
        for activity, launch in zip(window.activities, window.launches, strict=True)
        if launch is not None
        and (cover := times.get((launch.process, launch.thread)))
        and cover.within(launch.begin_ns, launch.begin_ns + 1)
    }


def busy_time(window: Window, activities: Iterable[Activity]) -> intervals.Intervals:
    """Return the time of the window in which any of the activities ran."""
    begin, end = window.begin_ns, window.end_ns
    return intervals.union((max(each.begin_ns, begin), min(each.end_ns, end)) for each in activities)


def largest_limit(work_ns: int, exposed_ns: int, causes: Mapping[IdleCause, int]) -> TraceLimit:
    """Return the limit with the largest share: "cannot be told" if idle time of unknown cause could change it,
    "balanced" if the second largest share is nearly as large.

    Idle time between pieces of work that had been launched in time counts as the GPU's. It is of unknown cause if there
    is more of it than work: the GPU then waits for something that the trace does not show."""
    delay_ns, unknown_ns = sum(causes[cause] for cause in _DEVICE), causes["unknown"]
    if delay_ns > work_ns:
        delay_ns, unknown_ns = 0, unknown_ns + delay_ns
    sums: list[tuple[int, TraceLimit]] = [
        (work_ns + delay_ns, "gpu-bound"),
        (exposed_ns, "network-bound"),
        (causes["input"], "input-bound"),
        (sum(causes[cause] for cause in HOST_CAUSES), "host-bound"),
    ]
    (largest_ns, limit), (second_ns, _), *_ = sorted(sums, key=lambda pair: -pair[0])
    if second_ns + unknown_ns > largest_ns:
        return "cannot be told"
    return "balanced" if second_ns > BALANCED_ABOVE * largest_ns else limit


def _phases(trace: TrainingTrace, window: Window, gaps: Iterable[IdleGap]) -> tuple[PhaseShare, ...]:
    """Return the phases in the order in which they first launch: the outermost ranges within a step on the thread of
    the steps, and `backward` for launches of other threads outside of these."""
    outermost = outermost_ranges(trace, window)
    place = 0

    def phase(launch: ApiCall) -> str:
        nonlocal place
        while place < len(outermost) - 1 and outermost[place + 1][0] <= launch.begin_ns:
            place += 1
        if outermost and outermost[place][0] <= launch.begin_ns < outermost[place][1]:
            return outermost[place][2]
        return BACKWARD if (launch.process, launch.thread) in trace.backward.keys() - {window.main} else OUTSIDE

    ordered = sorted(
        {(launch.process, launch.correlation): launch for launch in window.launches if launch}.values(),
        key=lambda launch: launch.begin_ns,
    )
    launch_phases = {(launch.process, launch.correlation): phase(launch) for launch in ordered}
    launches = dict.fromkeys(launch_phases.values(), 0)
    work_ns, idle_ns = dict(launches), dict(launches)
    for name in launch_phases.values():
        launches[name] += 1
    for activity, launch in zip(window.activities, window.launches, strict=True):
        if launch is not None:
            work_ns[launch_phases[launch.process, launch.correlation]] += activity.end_ns - activity.begin_ns
    for gap in gaps:
        if gap.launch is not None:
            idle_ns[launch_phases[gap.launch.process, gap.launch.correlation]] += gap.end_ns - gap.begin_ns
    return tuple(PhaseShare(name, launches[name], work_ns[name], idle_ns[name]) for name in launches)


def outermost_ranges(trace: TrainingTrace, window: Window) -> list[tuple[int, int, str]]:
    """Return the begin, end and phase of the outermost ranges within a step on the thread of the steps, in order."""
    outermost: list[tuple[int, int, str]] = []
    bounds = window.steps or ((trace.begin_ns, trace.end_ns),)
    step = 0
    for user_range in trace.ranges:
        if user_range.thread != window.main or (outermost and user_range.begin_ns < outermost[-1][1]):
            continue
        while step < len(bounds) - 1 and bounds[step][1] <= user_range.begin_ns:
            step += 1
        inside = bounds[step][0] <= user_range.begin_ns and user_range.end_ns <= bounds[step][1]
        if inside and (user_range.begin_ns, user_range.end_ns) != bounds[step]:
            outermost.append((user_range.begin_ns, user_range.end_ns, phase_name(user_range.name)))
    # A name that has a number of its own in each step is one phase.
    counts = Counter(name for _, _, name in outermost)
    return [
        (begin, end, repeated_name(name) if counts[name] == 1 and len(bounds) > 1 else name)
        for begin, end, name in outermost
    ]


def phase_name(range_name: str) -> str:
    """Return a range's name without decoration: "## forward ##" is "forward", "Optimizer.step#SGD.step" is
    "Optimizer.step"."""
    name = re.sub(r"(?<=\w|\))#.*", "", range_name).strip("# ")
    return "input" if name == "enumerate(DataLoader)" else name or range_name


def _bus_bandwidth(trace: TrainingTrace, window: Window) -> float | None:
    """Return the bus bandwidth of the largest all-reduces in the window, in bytes per second: 2 (n - 1) / n of their
    bytes over their time, for n ranks (nccl-tests, PERFORMANCE.md). None if their sizes are not known."""
    thread_collectives: dict[tuple[int, int], list[Collective]] = {}
    for collective in sorted(trace.collectives, key=lambda each: each.begin_ns):
        thread_collectives.setdefault(collective.thread, []).append(collective)
    places = dict.fromkeys(thread_collectives, 0)
    measured: list[tuple[int, float, int]] = []
    kernels = [
        (launch, activity)
        for activity, launch in zip(window.activities, window.launches, strict=True)
        if launch is not None and is_communication(activity)
    ]
    for launch, activity in sorted(kernels, key=lambda pair: pair[0].begin_ns):
        thread = (launch.process, launch.thread)
        candidates = thread_collectives.get(thread, [])
        while places.get(thread, 0) < len(candidates) and candidates[places[thread]].end_ns < launch.begin_ns:
            places[thread] += 1
        if places.get(thread, 0) >= len(candidates):
            continue
        collective = candidates[places[thread]]
        if collective.begin_ns <= launch.begin_ns and collective.is_all_reduce:
            moved = 2 * (collective.ranks - 1) / collective.ranks * collective.bytes
            measured.append((collective.bytes, moved, activity.end_ns - activity.begin_ns))
    largest = max((n_bytes for n_bytes, _, _ in measured), default=0)
    times_ns = sum(time_ns for n_bytes, _, time_ns in measured if n_bytes == largest)
    return sum(moved for n_bytes, moved, _ in measured if n_bytes == largest) / times_ns * 1e9 if times_ns else None
