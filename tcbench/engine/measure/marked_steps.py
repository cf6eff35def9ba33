"""The messages of a user's program that marks its steps (`tcbench.marks`), and its measurement from them."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tcbench.core.errors import TcbenchError
from tcbench.core.record import MOST_PHASE_TIMES, Cell, Environment, Measurement, PhaseTimes, RankPart
from tcbench.core.stopping import WarmUpRule
from tcbench.hardware import machine


class ProgramError(TcbenchError):
    """The user's program failed, or its times are unusable."""


class Introduction(msgspec.Struct, frozen=True, tag="hello"):
    """A loop's first message. `prefetch` is the length of the loader's queue in batches; the other fields are those of
    `tcbench.steps`, with the loader's `batch_size` if the program does not say what a batch counts."""

    name: str
    unit: str
    rank: int | None
    pid: int
    batch_size: int | None
    batches_per_step: int
    prefetch: int


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """The number of finished steps, and the time of the last one. With `waits` the process waits for an answer. After
    the last step, `left_out_s` is the part of the timed pass that belongs to no step, and `resident_bytes` the peak
    memory of the process."""

    finished: int
    step_s: float | None
    waits: bool
    left_out_s: float | None = None
    resident_bytes: int = 0


class MarkedSteps(msgspec.Struct, frozen=True, tag="result"):
    """All marks of a loop, and facts about its process. A mark is an index into `host_ns`.

    - `steps`: for each step, the marks of its begin and end, and whether it is the first of an epoch (1 or 0).
    - `spans`: for each part of a step in a phase, the step, the index of its name in `names` (None: left out), and the
      marks of its begin and end.
    - `host_ns`: the host's time at each mark; `device_s`: the device's time at the last marks, if events were recorded.
    - `synchronised_ns`: when all work was done after the last step.
    - `items`: what a batch counts, if the program says so."""

    warm_up: int
    names: tuple[str | None, ...]
    steps: tuple[int, ...]
    spans: tuple[int, ...]
    host_ns: tuple[int, ...]
    device_s: tuple[float, ...] | None
    synchronised_ns: int
    items: float | None
    packages: dict[str, str]
    threads: dict[str, int] | None
    device_peak_bytes: int | None
    files: tuple[str, ...]

    @property
    def pass_s(self) -> float:
        """The time from the begin of the first timed step until all work was done."""
        return (self.synchronised_ns - self.host_ns[self.steps[3 * self.warm_up]]) * 1e-9

    @property
    def epoch_starts(self) -> tuple[int, ...]:
        """The timed steps that were the first of an epoch."""
        return tuple(place for place, starts in enumerate(self.steps[2::3][self.warm_up :]) if starts)


LoopMessage = Introduction | Advance | MarkedSteps

_BELIEVED = 0.05
"""The largest believed difference between the time of the steps and the time until all work was done, relative to the
latter."""

_READING_S = 1e-3
"""A difference that reading the clocks can make."""

UNREPORTED: dict[str, Any] = {
    "warmup_loss": None,
    "last_loss": None,
    "parameters": 0,
    "macs_per_image": 0,
    "gc_frozen": False,
}
"""The fields of a measurement that a program does not report."""


@dataclass(frozen=True)
class RankResult:
    """The result of one process: how it introduced itself, its marks, and its peak resident memory in bytes."""

    introduction: Introduction
    marked: MarkedSteps
    resident_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The peak memory of the device, or of the process without one."""
        return self.marked.device_peak_bytes or self.resident_bytes


@dataclass(frozen=True)
class _StepTimes:
    """The seconds of warm-up steps and timed steps, and of each phase in the timed steps."""

    warm_up_s: list[float]
    steps_s: list[float]
    phases_s: dict[str, list[float]]


def measurement(cell: Cell, results: Sequence[RankResult], block_steps: int) -> Measurement:
    """Return the measurement of a trial from the results of its ranks, in order. Raises ProgramError if the times are
    not believed, or if no step counts."""
    for rank_result in results:
        _check_believed(rank_result.marked)
    times = [_by_its_clock(rank_result.marked) for rank_result in results]
    slowest = max(range(len(results)), key=lambda rank: sum(times[rank].steps_s))
    marked, step_times, first = results[slowest].marked, times[slowest], results[0].introduction
    counts = (cell.batch_size if r.marked.items is None else r.marked.items for r in results)
    parts = tuple(
        RankPart(
            rank=rank,
            host=socket.gethostname(),
            cores=(),
            device=cell.device,
            step_times_s=tuple(rank_times.steps_s),
            phases=_phases(rank_result.marked, block_steps),
            peak_memory_bytes=rank_result.peak_bytes,
        )
        for rank, (rank_result, rank_times) in enumerate(zip(results, times, strict=True))
    )
    measured = Measurement(
        warmup_times_s=tuple(step_times.warm_up_s),
        warmup_settled=WarmUpRule(1, marked.warm_up).has_settled(step_times.warm_up_s),
        step_times_s=tuple(step_times.steps_s),
        block_steps=block_steps,
        stopped_by="budget",
        phases=parts[slowest].phases,
        peak_memory_bytes=parts[slowest].peak_memory_bytes,
        peak_memory_of="device" if marked.device_peak_bytes else "process",
        prefetch_depth=first.prefetch,
        items=float(first.batches_per_step * sum(counts)),
        epoch_starts=marked.epoch_starts or msgspec.UNSET,
        ranks=parts if len(parts) > 1 else (),
        **UNREPORTED,
    )
    if not measured.counted_times_s:
        raise ProgramError("each epoch has one step; at least two are needed, since the first is not counted")
    return measured


def with_reports(environment: Environment, marked: Sequence[MarkedSteps]) -> Environment:
    """Return the environment with the program's packages, its own files and PyTorch's numbers of threads."""
    return msgspec.structs.replace(
        environment,
        packages={**environment.packages, **marked[0].packages},
        sources=machine.sources(machine.files_in_project({file for rank in marked for file in rank.files})),
        threads=marked[0].threads or msgspec.UNSET,
        blas="",
    )


def _check_believed(marked: MarkedSteps) -> None:
    """Raise ProgramError if work was still running when the last step ended."""
    first, last = marked.steps[3 * marked.warm_up], marked.steps[-2]
    span_s = (marked.host_ns[last] - marked.host_ns[first]) * 1e-9
    if marked.device_s is not None:
        span_s = marked.device_s[last - len(marked.host_ns)] - marked.device_s[first - len(marked.host_ns)]
    if abs(marked.pass_s - span_s) > max(_BELIEVED * marked.pass_s, _READING_S):
        raise ProgramError(
            f"not believed: the steps took {span_s:.3g} s, but their work was done after {marked.pass_s:.3g} s: wait "
            "for it in each step (JAX: block_until_ready of the loss; PyTorch: torch.cuda.synchronize())"
        )


def _by_its_clock(marked: MarkedSteps) -> _StepTimes:
    """Return the times by the device's events if there are any, else by the host's clock."""
    host = _on_host(marked)
    if marked.device_s is None:
        return host
    device = _times(marked, [*[0.0] * (len(marked.host_ns) - len(marked.device_s)), *marked.device_s])
    return _StepTimes(host.warm_up_s, device.steps_s, device.phases_s)  # no events are recorded in warm-up


def _on_host(marked: MarkedSteps) -> _StepTimes:
    """Return the times by the host's clock."""
    return _times(marked, [ns * 1e-9 for ns in marked.host_ns])


def _times(marked: MarkedSteps, mark_s: Sequence[float]) -> _StepTimes:
    """Return the times of steps and phases from the time of each mark in seconds. `body` is a step's time outside of
    its phases."""
    phases_s = {name: [0.0] * (len(marked.steps) // 3) for name in marked.names}
    for step, name, begin, end in zip(*(marked.spans[field::4] for field in range(4)), strict=True):
        phases_s[marked.names[name]][step] += mark_s[end] - mark_s[begin]
    left_out_s = phases_s.pop(None)
    steps_s = [
        mark_s[end] - mark_s[begin] - left_s
        for begin, end, left_s in zip(marked.steps[::3], marked.steps[1::3], left_out_s, strict=True)
    ]
    phases_s.pop("body", None)  # a phase that the program calls so is part of the rest
    body_s = [step_s - sum(parts_s) for step_s, *parts_s in zip(steps_s, *phases_s.values(), strict=True)]
    timed_s = {name: times_s[marked.warm_up :] for name, times_s in ({**phases_s, "body": body_s}).items() if name}
    return _StepTimes(steps_s[: marked.warm_up], steps_s[marked.warm_up :], timed_s)


def _phases(marked: MarkedSteps, block_steps: int) -> tuple[PhaseTimes, ...]:
    """Return the times of the phases in the counted steps."""
    host, device = _on_host(marked), _by_its_clock(marked)
    not_counted = {*range(0, len(host.steps_s), block_steps), *marked.epoch_starts}
    counted = [place for place in range(len(host.steps_s)) if place not in not_counted][-MOST_PHASE_TIMES:]

    def times_s(times: _StepTimes, name: str) -> tuple[float, ...]:
        return tuple(times.phases_s[name][place] for place in counted)

    return tuple(
        PhaseTimes(
            name=name,
            host_s=times_s(host, name),
            device_s=None if marked.device_s is None else times_s(device, name),
        )
        for name in host.phases_s
    )
