"""The verdict on a training trace, with advice, as lines and as JSON."""

from collections.abc import Iterable, Mapping

from tcbench.analysis.trace_advice import Change, TraceAdvice
from tcbench.analysis.trace_causes import IdleCause
from tcbench.analysis.trace_kernels import TraceKernel, kernel_times, unknown_share
from tcbench.analysis.trace_verdict import HOST_CAUSES, PhaseShare, TraceVerdict
from tcbench.analysis.trace_window import StepSource
from tcbench.core.training_trace import Overhead
from tcbench.run.training_traces import JudgedTrace
from tcbench.show.document import document
from tcbench.show.format import counted, listed, milliseconds, number, percent
from tcbench.show.tables import SHARE, Column, Kind, Screen, Table

LEAST_SHARE = 0.0005
"""The smallest share that has a line."""

_MOST_PHASES, _MOST_KERNELS = 12, 8

_CAUSES: Mapping[IdleCause, str] = {
    "synchronisation": "the host waited in a synchronisation",
    "input": "the host waited for input",
    "launch_call": "the host was in a call of the GPU's API, or the launch was on its way",
    "operator": "the host was in an operator of the framework",
    "python": "the host ran Python or other code outside of operators",
    "dispatch": "launched work had not yet begun",
    "stream_wait": "launched work had to wait for another stream",
    "unknown": "the launch of the next work is not in the trace",
}

_CPU_CAUSES: Mapping[IdleCause, str] = {
    "input": "waiting for input",
    "python": "in Python or other code outside of operators",
}

_SOURCES: Mapping[StepSource, str] = {
    "profiler": "marked by the profiler",
    "range": "ranges of the program named",
    "optimizer": "from one update of the optimizer to the next",
    "none": "",
}

_OVERHEADS: Mapping[Overhead, str] = {
    "stacks": "Python stacks",
    "modules": "modules",
    "shapes": "shapes",
    "memory": "memory",
}

_CHANGES: Mapping[Change, tuple[str, int | None]] = {
    "input_workers": ("load the input in more workers (DataLoader's num_workers, DALI)", 21),
    "fewer_synchronisations": ("synchronise less often (.item(), .cpu(), printing the loss)", None),
    "fused_optimizer": ("update many parameters at once (fused=True or foreach=True, if the optimizer has it)", 24),
    "cuda_graphs": ("launch kernels in batches (CUDA graphs, torch.compile)", 31),
    "compile": ("run fewer operators from Python (torch.compile)", None),
    "host_pauses": ("shorten long pauses of the host (start-up, allocation, preparation of data)", None),
    "low_precision": ("compute in fp16 or bf16 on Tensor Cores (torch.autocast)", 14),
    "channels_last": ("keep activations in NHWC (memory_format=torch.channels_last)", 26),
    "fused_elementwise": ("fuse normalisation, additions and activations (torch.compile)", 25),
    "overlap_communication": ("communicate while the GPU computes", None),
    "keep_activations": ("store activations instead of recomputing them", None),
}
"""A description of each change, and the talk's slide about it."""


def show(console: Screen, judged: JudgedTrace) -> None:
    """Print a trace: the verdict, the steps, where the time goes, phases, the longest kernels, advice, and notes."""
    verdict = judged.verdict
    console.say(f"{judged.path.name}: {verdict.device_name}", style="bold")
    console.say(sentence(verdict), step_line(verdict), "")
    console.table(time_table(verdict))
    if len(verdict.phases) > 1:
        console.table(phase_table(verdict, _MOST_PHASES), f"Phases{_per_step(verdict)}")
    if not verdict.is_on_cpu:
        console.table(kernel_table(verdict, _MOST_KERNELS), f"Longest kernels and copies{_per_step(verdict)}")
    if judged.advice:
        console.table(advice_table(judged), f"What would help, and what it saves at most{_per_step(verdict)}")
    console.notes(notes(verdict))


def sentence(verdict: TraceVerdict) -> str:
    """Return the verdict with the shares that it rests on."""
    share = verdict.share
    if verdict.is_on_cpu:
        shares = [f"{percent(share(time_ns))} of the time {text}" for text, time_ns in labelled_times(verdict)]
        return f"{verdict.limit}: the CPU spends {', '.join(shares)}"
    work, exposed, idle = (
        percent(share(time_ns))
        for time_ns in (verdict.work_ns + verdict.recomputation_ns, verdict.exposed_ns, verdict.idle_ns)
    )
    waits = {
        "waiting for the host's launches": sum(verdict.causes[cause] for cause in HOST_CAUSES),
        "waiting for input": verdict.causes["input"],
        "waiting for launched work to begin": verdict.causes["dispatch"] + verdict.causes["stream_wait"],
        "for no known reason": verdict.causes["unknown"],
    }
    longest = max(waits, key=lambda wait: waits[wait])
    mostly = f" ({percent(share(waits[longest]))} {longest})" if share(waits[longest]) >= LEAST_SHARE else ""
    communicates = f", only communicates {exposed}" if share(verdict.exposed_ns) >= LEAST_SHARE else ""
    return f"{verdict.limit}: the GPU works {work} of the time{communicates} and is idle {idle}{mostly}"


def figures(verdict: TraceVerdict) -> str:
    """Return the figures that stand beside the name of a trace."""
    busy = f"{'CPU' if verdict.is_on_cpu else 'GPU'} busy {percent(verdict.share(verdict.busy_ns))}"
    return busy if verdict.step_ns is None else f"{milliseconds(verdict.step_ns * 1e-9)} per step · {busy}"


def step_line(verdict: TraceVerdict) -> str:
    """Return a line on the steps and the window."""
    if verdict.step_ns is None:
        share = verdict.window_ns / verdict.recording_ns if verdict.recording_ns else 0.0
        extent = "the first operator to the last" if verdict.is_on_cpu else "the GPU's first work to its last"
        return (
            f"no steps are marked: all figures are for the {milliseconds(verdict.window_ns * 1e-9)} from {extent}, "
            f"{percent(share)} of the recording"
        )
    source = _SOURCES[verdict.source] + (f" '{verdict.step_name}'" if verdict.source == "range" else "")
    steps = counted(verdict.n_steps, "step")
    operations = _operations(verdict.launches_per_step or 0.0, verdict)
    return f"{steps} of {milliseconds(verdict.step_ns * 1e-9)}, {source}; {operations} per step"


def labelled_times(verdict: TraceVerdict, least_share: float = LEAST_SHARE) -> list[tuple[str, int]]:
    """Return the times that the window divides into, with what each is, without those below `least_share`."""
    if verdict.is_on_cpu:
        times = [
            ("in operators", verdict.work_ns),
            ("in communication alone", verdict.exposed_ns),
            *((text, verdict.causes[cause]) for cause, text in _CPU_CAUSES.items()),
        ]
    else:
        times = [
            ("busy with its own work", verdict.work_ns),
            (
                f"busy with communication alone{', or beside recomputation' * bool(verdict.recomputation_ns)}",
                verdict.exposed_ns,
            ),
            ("busy with the recomputation of activations", verdict.recomputation_ns),
            *((f"idle: {text}", verdict.causes[cause]) for cause, text in _CAUSES.items()),
        ]
    return [(text, time_ns) for text, time_ns in times if verdict.share(time_ns) >= least_share]


def _per_step(verdict: TraceVerdict) -> str:
    return " per step" if verdict.n_steps else ""


def _count(count_per_step: float) -> str:
    """Format a number per step: whole numbers without a fraction."""
    return f"{count_per_step:.0f}" if count_per_step == round(count_per_step) else number(count_per_step)


def _operations(count_per_step: float, verdict: TraceVerdict) -> str:
    """Format a count with its noun, operators on a CPU or launches on a GPU: "1 launch", "12.5 operators"."""
    singular, several = ("operator", "operators") if verdict.is_on_cpu else ("launch", "launches")
    return f"{_count(count_per_step)} {singular if count_per_step == 1 else several}"


COUNTS = Kind(_count)
TIMES = Kind(lambda seconds: milliseconds(round(seconds, 7)))
"""Times to 0.1 µs, the resolution of a trace per step."""


def time_table(verdict: TraceVerdict) -> Table[tuple[str, int]]:
    """Return the times that the window divides into. The shares add up to 100%."""
    return Table(
        [
            Column("CPU time" if verdict.is_on_cpu else "GPU time", lambda row: row[0]),
            Column("share", lambda row: verdict.share(row[1]), SHARE),
            Column(f"time{_per_step(verdict)}", lambda row: verdict.per_step_s(row[1]), TIMES),
        ],
        labelled_times(verdict),
    )


def phase_table(verdict: TraceVerdict, most: int | None = None) -> Table[PhaseShare]:
    """Return the phases in their order, only those with the most time if there are more than `most`."""
    longest = set(sorted(verdict.phases, key=lambda phase: -(phase.work_ns + phase.idle_ns))[:most])
    on_cpu, n_steps = verdict.is_on_cpu, verdict.n_steps or 1
    columns: list[Column[PhaseShare]] = [
        Column("phase", lambda phase: phase.name),
        Column("in operators" if on_cpu else "GPU work launched", lambda p: verdict.per_step_s(p.work_ns), TIMES),
        Column(
            "other time" if on_cpu else "idle before that work",
            lambda phase: verdict.per_step_s(phase.idle_ns),
            TIMES,
        ),
        Column("operators" if on_cpu else "launches", lambda phase: phase.launches / n_steps, COUNTS),
    ]
    return Table(columns, [phase for phase in verdict.phases if phase in longest])


def kernel_table(verdict: TraceVerdict, most: int) -> Table[TraceKernel]:
    """Return the `most` kernels and copies with the most time."""
    columns: list[Column[TraceKernel]] = [
        Column("kernel or copy", lambda kernel: kernel.name),
        Column("kind", lambda kernel: kernel.kind, spare=True),
        Column("share", lambda kernel: verdict.share(kernel.time_ns), SHARE),
        Column("time", lambda kernel: verdict.per_step_s(kernel.time_ns), TIMES),
        Column("launches", lambda kernel: kernel.launches / (verdict.n_steps or 1), COUNTS),
    ]
    return Table(columns, kernel_times(verdict.window)[:most])


def advice_table(judged: JudgedTrace) -> Table[TraceAdvice]:
    """Return the changes that would help, the one that may save most first."""
    verdict = judged.verdict
    return Table(
        [
            Column("change", lambda advice: _CHANGES[advice.change][0], wraps=True),
            Column("share", lambda advice: verdict.share(advice.at_most_ns), SHARE),
            Column("time", lambda advice: verdict.per_step_s(advice.at_most_ns), TIMES),
            Column("because", lambda advice: evidence(advice, verdict), wraps=True),
            Column("2018 talk", lambda advice: f"slide {slide}" if (slide := _CHANGES[advice.change][1]) else ""),
        ],
        judged.advice,
    )


def evidence(advice: TraceAdvice, verdict: TraceVerdict) -> str:
    """Return the times that an advice rests on, per step."""
    idle, work = (milliseconds(verdict.per_step_s(time_ns)) for time_ns in (advice.idle_ns, advice.work_ns))
    launches = _operations(advice.launches / (verdict.n_steps or 1), verdict)
    waits = f"{'waits' if verdict.is_on_cpu else 'GPU idle'} for {idle}"
    if not advice.launches:
        return waits if advice.idle_ns else f"{work} that overlap with nothing"
    works = f"{work} of work by {launches}"
    if advice.change == "host_pauses":
        return f"{waits} in {_count(advice.launches / (verdict.n_steps or 1))} pauses of 1 ms or more"
    if verdict.is_on_cpu:
        return f"{idle} outside of operators, and {works}" if advice.work_ns else f"{idle} between {launches}"
    if advice.idle_ns and advice.work_ns:
        return f"{waits}, and {works}"
    return f"{waits} before {launches}" if advice.idle_ns else works


def notes(verdict: TraceVerdict) -> list[str]:
    """Return what a reader must know to judge the figures."""
    texts = []
    if verdict.overheads:
        extras = listed([_OVERHEADS[overhead] for overhead in verdict.overheads])
        without = "the steps are shorter" if verdict.is_on_cpu else "the GPU is idle for less time"
        texts.append(f"The recording of {extras} slowed the host; without it {without}.")
    if verdict.limit == "network-bound":
        texts.append(
            "The trace of one rank cannot tell a slow network from waiting for other ranks; name those of all ranks."
            if verdict.ranks != 1
            else "This trace cannot tell a slow network from waiting for other ranks."
        )
    if verdict.bus_bytes_per_s is not None:
        bandwidth = f"{number(verdict.bus_bytes_per_s / 1e9)} GB/s"
        texts.append(f"Bus bandwidth of the largest all-reduces, waiting for other ranks included: {bandwidth}.")
    if verdict.clocks_differ:
        texts.append("Work begins before its launch: the clocks of host and GPU differ, so that causes cannot be told.")
    elif verdict.limit == "cannot be told":
        texts.append(
            "The steps have no operator, so that the trace does not show what the CPU did."
            if verdict.is_on_cpu
            else "Too little was recorded, or the trace does not show the cause of too much idle time."
        )
    if verdict.devices > 1:
        texts.append(f"The figures are for the GPU with the most work of the {verdict.devices} in the trace.")
    if (unknown := unknown_share(kernel_times(verdict.window))) >= LEAST_SHARE:
        texts.append(f"Kernels of an unknown kind take {percent(unknown)} of the time of all kernels.")
    if verdict.invalid_events:
        texts.append(f"{counted(verdict.invalid_events, 'event')} left out: they end before they begin.")
    return texts


def to_json(traces: Iterable[JudgedTrace], ranks: Mapping[str, object] | None) -> str:
    """Return judged traces, and what those of several ranks show together, as JSON, as `docs/explain-trace.schema.json`
    describes it. Shares are of the window, and the advice's `at_most_s` is the time of the window that it saves."""
    return document("tcbench-explain-trace", 1, traces=[_fields(judged) for judged in traces], ranks=ranks)


def _fields(judged: JudgedTrace) -> dict[str, object]:
    verdict = judged.verdict
    share, n_steps = verdict.share, verdict.n_steps or 1
    kernels = kernel_times(verdict.window)
    return {
        "file": judged.path.name,
        "device_name": verdict.device_name,
        "verdict": verdict.limit,
        "window_s": verdict.window_ns * 1e-9,
        "recording_s": verdict.recording_ns * 1e-9,
        "steps": verdict.n_steps,
        "step_source": verdict.source,
        "step_s": None if verdict.step_ns is None else verdict.step_ns * 1e-9,
        "busy": share(verdict.busy_ns),
        "idle": share(verdict.idle_ns),
        "communication": share(verdict.communication_ns),
        "exposed_communication": share(verdict.exposed_ns),
        "recomputation": share(verdict.recomputation_ns),
        "bus_bytes_per_s": verdict.bus_bytes_per_s,
        "launches_per_step": verdict.launches_per_step,
        "causes": {cause: share(time_ns) for cause, time_ns in verdict.causes.items()},
        "phases": [
            {
                "name": phase.name,
                "launches": phase.launches / n_steps,
                "work_s": verdict.per_step_s(phase.work_ns),
                "idle_s": verdict.per_step_s(phase.idle_ns),
            }
            for phase in verdict.phases
        ],
        "kernels": [
            {
                "name": kernel.name,
                "kind": kernel.kind,
                "launches": kernel.launches / n_steps,
                "time_s": verdict.per_step_s(kernel.time_ns),
                "share": share(kernel.time_ns),
            }
            for kernel in kernels
        ],
        "unknown_kernels": unknown_share(kernels),
        "advice": [
            {
                "what": each.change,
                "at_most_s": each.at_most_ns * 1e-9,
                "evidence": evidence(each, verdict),
                "slide": _CHANGES[each.change][1],
            }
            for each in judged.advice
        ],
        "notes": notes(verdict),
    }
