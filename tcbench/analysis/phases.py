"""A cell's phases: the one place that tells how long each takes in a step, by all trials together. Pure functions."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tcbench.core.groups import grouped
from tcbench.core.record import Measurement, PhaseTimes, RankPart

ALLREDUCE = "allreduce"
"""The phase in which ranks average their gradients; where an exchange runs beside backward, what is left of it."""


@dataclass(frozen=True)
class PhaseCost:
    """A phase, per step: `host_s` what the host needs for it, without waiting for the GPU; `device_s` how long the
    GPU is busy with it, None where that is not known."""

    name: str
    host_s: float
    device_s: float | None = None


def step_s(measured: Sequence[Measurement]) -> float:
    """The geometric mean over trials, as in every table. Raises ValueError where no step counts."""
    return statistics.geometric_mean(statistics.fmean(m.counted_times_s) for m in measured if m.counted_times_s)


def phase_costs(measured: Sequence[Measurement], *, waits: bool = False) -> tuple[PhaseCost, ...]:
    """The phases of all trials together, in order. Those that the timed steps tell have their share of the step, and
    add up to it. Of a profiled pass it is the median, but the least of a host that `waits` for its GPU: nothing waits
    in that pass until the launch queue is full. Of many ranks, those of the one that the others wait for, in each
    trial: its all-reduce is the exchange alone."""
    trials = [critical_rank(m.ranks).phases if m.ranks else m.phases for m in measured]
    host_s, device_s = (by_phase(trials, of) for of in (lambda phase: phase.host_s, lambda phase: phase.device_s))
    timed = not waits and all(m.phases_are_timed for m in measured)
    typical = min if waits else statistics.fmean if timed else statistics.median
    costs_s = {name: typical(times_s) for name, times_s in host_s.items()}
    share = step_s(measured) / sum(costs_s.values()) if timed and costs_s else 1.0
    return tuple(
        PhaseCost(name, share * cost_s, statistics.median(device_s[name]) if name in device_s else None)
        for name, cost_s in costs_s.items()
    )


def by_phase(
    trials: Iterable[Iterable[PhaseTimes]], times_s: Callable[[PhaseTimes], Iterable[float] | None]
) -> dict[str, list[float]]:
    """The times of each phase in all trials together, in the order of the phases; without phases that have none."""
    return grouped((phase.name, time_s) for phases in trials for phase in phases for time_s in times_s(phase) or ())


def times_s(phase: PhaseTimes) -> tuple[float, ...]:
    """A phase's time in each step, by the clock of the device where it has one."""
    return phase.device_s or phase.host_s


def critical_rank(parts: Sequence[RankPart]) -> RankPart:
    """The rank that the others wait for: the one that spends the least time in the all-reduce. Its phases make up the
    step. Raises ValueError without ranks."""
    return min(parts, key=lambda part: sum(sum(times_s(p)) for p in part.phases if p.name == ALLREDUCE))
