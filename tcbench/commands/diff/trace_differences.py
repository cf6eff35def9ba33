"""A step's change between two traces of another profiler: where the time went, phases and kernels."""

from collections.abc import Callable

from tcbench.analysis.comparability import Difference
from tcbench.analysis.compare import ClockName
from tcbench.analysis.trace_kernels import kernel_times
from tcbench.analysis.trace_verdict import TraceVerdict
from tcbench.commands.diff.differences import Diff, DiffSide, PartKey, StepPart, make_level, merged_parts
from tcbench.core.errors import NotComparableError
from tcbench.run.training_traces import JudgedTrace
from tcbench.show.format import listed
from tcbench.show.trace_report import labelled_times

_FACTS: dict[str, Callable[[TraceVerdict], str]] = {
    "device": lambda verdict: verdict.device_name,
    "ranks": lambda verdict: str(verdict.ranks),
    "recorded besides times": lambda verdict: listed(sorted(verdict.overheads)) or "nothing",
}


_NEEDED: dict[str, Callable[[TraceVerdict], bool]] = {
    "marked steps": lambda verdict: verdict.n_steps > 0,
    "work of a GPU": lambda verdict: not verdict.is_on_cpu,
}


def diff_traces(base: JudgedTrace, current: JudgedTrace) -> Diff:
    """Return the diff of two traces, by means over their steps, or over the windows if no steps are marked on either
    side. The times of the first level divide the step. Raises NotComparableError if only one side has steps, or a GPU.
    """
    verdicts = base.verdict, current.verdict
    for name, has in _NEEDED.items():
        if has(base.verdict) != has(current.verdict):
            path = base.path if has(base.verdict) else current.path
            raise NotComparableError(f"of the two traces only {path} has {name}, so that the change cannot be divided")
    on_cpu = base.verdict.is_on_cpu
    clock: ClockName = "host" if on_cpu else "device"
    step = StepPart(
        "step",
        None,
        base.verdict.per_step_s(base.verdict.window_ns),
        current.verdict.per_step_s(current.verdict.window_ns),
    )
    levels = [make_level("time", clock, step, merged_parts(*map(_times, verdicts)), "rounding")]
    rest = "overlap of phases" if on_cpu else "overlap of phases, and idle time before launches that are not known"
    levels.append(make_level("phases", clock, step, merged_parts(*map(_phases, verdicts)), rest))
    (base_s, base_launches), (current_s, current_launches) = map(_kernels, verdicts)
    if not on_cpu:
        merged = merged_parts(base_s, current_s, launches=(base_launches, current_launches))
        levels.append(make_level("kernels", clock, step, merged, "idle time of the device, minus overlap"))
    facts = {fact: [words(verdict) for verdict in verdicts] for fact, words in _FACTS.items()}
    differences = [Difference("recording", fact, *values) for fact, values in facts.items() if len({*values}) > 1]
    return Diff(_side(base), _side(current), step, tuple(levels), tuple(differences))


def _side(judged: JudgedTrace) -> DiffSide:
    verdict = judged.verdict
    label = judged.path.name if verdict.n_steps else f"{judged.path.name}, its whole window"
    return DiffSide(label, verdict.device_name, 1, verdict.n_steps, None)


def _times(verdict: TraceVerdict) -> dict[PartKey, float]:
    """Return the seconds per step that the step divides into."""
    return {(text, None): verdict.per_step_s(time_ns) for text, time_ns in labelled_times(verdict, 0.0)}


def _phases(verdict: TraceVerdict) -> dict[PartKey, float]:
    """Return the seconds per step of each phase's work, and of the time in which it did not work."""
    idle = "outside of operators" if verdict.is_on_cpu else "idle before"
    times = [(phase.name, phase.work_ns) for phase in verdict.phases]
    times += [(f"{phase.name}: {idle}", phase.idle_ns) for phase in verdict.phases]
    return {(name, None): verdict.per_step_s(time_ns) for name, time_ns in times}


def _kernels(verdict: TraceVerdict) -> tuple[dict[PartKey, float], dict[PartKey, float]]:
    """Return two mappings, of the seconds per step and of the launches per step of each kernel."""
    kernels = kernel_times(verdict.window)
    keys: list[PartKey] = [(kernel.name, None) for kernel in kernels]
    times_s = (verdict.per_step_s(kernel.time_ns) for kernel in kernels)
    launches = (kernel.launches / (verdict.n_steps or 1) for kernel in kernels)
    return dict(zip(keys, times_s, strict=True)), dict(zip(keys, launches, strict=True))
