"""Bottlenecks in words: the stage that limits a cell, its figures, and reasons to doubt the verdict."""

from collections.abc import Iterable

from tcbench.analysis.bottleneck import INPUT_PHASES, PASSES, Bottleneck
from tcbench.analysis.phases import ALLREDUCE
from tcbench.core.text import digits
from tcbench.show.notes import Caution


def limit_words(bottleneck: Bottleneck) -> str:
    """Return the verdict in words, such as "input-bound"; "unsettled" if the trial's steps vary too much for one.

    If the CPU spends most of a step computing, return "compute-bound", or "update 52%" if a phase other than the
    forward and backward pass dominates."""
    if bottleneck.unsteady:
        return "unsettled"
    if bottleneck.dominant is None:
        return bottleneck.verdict
    if bottleneck.dominant.name in PASSES:
        return "compute-bound"
    return f"{bottleneck.dominant.name} {bottleneck.dominant.host_s / bottleneck.phases_s:.0%}"


def doubt_words(bottleneck: Bottleneck | None) -> str:
    """Return the two times that contradict each other in a doubtful bottleneck (`Bottleneck.doubt`); otherwise ""."""
    if bottleneck is None or bottleneck.doubt is None:
        return ""
    if bottleneck.doubt == "recording":
        return f"recorded steps take {_ms(bottleneck.step_s)}, timed steps {_ms(bottleneck.timed_step_s or 0.0)}"
    return f"phases {_ms(bottleneck.phases_s)}, a step {_ms(bottleneck.step_s)}"


def doubtful(bottlenecks: Iterable[tuple[str, Bottleneck | None]]) -> list[str]:
    """Return a caution that describes the first doubtful bottleneck and counts the others; an empty list if none is
    doubtful. `bottlenecks` are pairs of a cell's label and its bottleneck."""
    texts = ((label, doubt_words(bottleneck)) for label, bottleneck in bottlenecks)
    lines = list(dict.fromkeys(f"{label}: {text}" for label, text in texts if text))
    more = f"; {len(lines) - 1} more" if len(lines) > 1 else ""
    return [Caution(f"Doubtful: the phases do not add up to a step: {lines[0]}{more}.")] if lines else []


def limit_sentence(bottleneck: Bottleneck) -> str:
    """Return the limit, its numbers and any doubts: "host-bound: host needs 38 ms per step, GPU 23 ms; GPU idle
    41%"."""
    figures = _gpu_figures(bottleneck) if bottleneck.on_gpu else _cpu_figures(bottleneck)
    remarks = [f"doubtful: {doubt}"] if (doubt := doubt_words(bottleneck)) else []
    if bottleneck.unsteady and bottleneck.median_step_s:
        mean, median = _ms(bottleneck.step_s), _ms(bottleneck.median_step_s)
        remarks.append(f"one trial: its mean step takes {mean}, its median step {median}")
    return "; ".join([f"{limit_words(bottleneck)}: {figures}", *remarks])


def _gpu_figures(bottleneck: Bottleneck) -> str:
    """Return the stage times of a GPU cell: "host needs 38 ms per step, GPU 23 ms; GPU idle 41%". Input that has its
    own threads comes first if it is the limit. Without a recording of the GPU, the text ends with the step time."""
    needs, input_bound = bottleneck.needs, bottleneck.verdict == "input-bound"
    stages = [f"host needs {_ms(needs.host_side_s)} per step"]
    if needs.input_s is not None and needs.overlapped:
        stages.append(f"input {_ms(needs.input_s)}")
        if input_bound:
            stages = [f"input needs {_ms(needs.input_s)} per step", f"host {_ms(needs.host_s)}"]
    elif needs.input_s and input_bound:
        stages[0] += f" ({_ms(needs.input_s)} of it for input)"
    stages += [f"GPU {_ms(needs.gpu_s)}"] if needs.gpu_s is not None else []
    stages += [f"the all-reduce {_ms(needs.network_s)}"] if needs.network_s else []
    device = bottleneck.device
    end = f"a step takes {_ms(bottleneck.step_s)}" if device is None else f"GPU idle {1 - device.busy_share:.0%}"
    return f"{', '.join(stages)}; {end}"


def _cpu_figures(bottleneck: Bottleneck) -> str:
    """Return the stage times of a CPU cell: "the CPU computes 38 ms per step (forward 12 ms, backward 24 ms, ...)". The
    stage that limits the cell comes first: the input, the all-reduce, or the computation."""
    needs = bottleneck.needs
    if bottleneck.verdict == "network-bound":
        return f"the all-reduce takes {_ms(needs.network_s)} per step, the computation before it {_ms(needs.host_s)}"
    parts = [f"{p.name} {_ms(p.host_s)}" for p in bottleneck.phases if p.name not in (*INPUT_PHASES, ALLREDUCE)]
    words = f"the CPU computes {_ms(needs.host_s)} per step"
    words += f" ({', '.join(parts)})" if bottleneck.dominant and len(parts) > 1 else ""
    verb, relation = ("needs", "in parallel") if needs.overlapped else ("takes", "before it")
    if needs.input_s is None:
        words += "; input is prepared in parallel"
    elif bottleneck.verdict != "input-bound":
        words += f", input {verb} {_ms(needs.input_s)} {relation}" if needs.overlapped or needs.input_s else ""
    elif needs.overlapped or needs.input_s:
        waits = f"; the CPU waits {_ms(bottleneck.waits_for_input_s)} for it"
        words = f"input {verb} {_ms(needs.input_s)} per step, computation {_ms(needs.host_s)}"
        words += waits if needs.overlapped else ", one after the other"
    return words + (f"; the all-reduce takes {_ms(needs.network_s)}" if needs.network_s else "")


def _ms(seconds: float) -> str:
    """Return a time in milliseconds with two significant digits: 38 ms, 8.1 ms, 0.31 ms."""
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 9.95 else f"{digits(ms, 2)} ms"
