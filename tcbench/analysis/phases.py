"""How long each phase of a cell takes per step, over all its trials. Pure functions."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tcbench.core.groups import grouped
from tcbench.core.record import Measurement, PhaseTimes, RankPart

ALLREDUCE = "allreduce"
"""The phase in which ranks average their gradients. If the exchange overlaps with backward, only the remainder is
counted here."""


@dataclass(frozen=True)
class PhaseCost:
    """A phase's time per step: `host_s` on the host without waits for the GPU, `device_s` on the GPU (None if
    unknown)."""

    name: str
    host_s: float
    device_s: float | None = None


def step_s(measured: Sequence[Measurement]) -> float:
    """Return the time per step: the geometric mean over trials, as in every table. Raises ValueError without steps."""
    return statistics.geometric_mean(statistics.fmean(m.counted_times_s) for m in measured if m.counted_times_s)


def phase_costs(measured: Sequence[Measurement], *, waits: bool = False) -> tuple[PhaseCost, ...]:
    """Return the time per step of each phase over all trials, in order.

    - Phases of the timed steps are scaled so that they add up to the step.
    - Phases of a profiled pass are medians. If the host `waits` for its GPU they are minima, since nothing waits in
      that pass until the launch queue is full.
    - With many ranks the phases are those of each trial's critical rank, whose all-reduce is the exchange alone."""
    trials = [critical_rank(m.ranks).phases if m.ranks else m.phases for m in measured]
    host_s, device_s = by_phase(trials, lambda phase: phase.host_s), by_phase(trials, lambda phase: phase.device_s)
    timed = not waits and all(m.phases_are_timed for m in measured)
    average = min if waits else statistics.fmean if timed else statistics.median
    costs_s = {name: average(times_s) for name, times_s in host_s.items()}
    share = step_s(measured) / sum(costs_s.values()) if timed and costs_s else 1.0
    return tuple(
        PhaseCost(name, share * cost_s, statistics.median(device_s[name]) if name in device_s else None)
        for name, cost_s in costs_s.items()
    )


def by_phase(
    trials: Iterable[Iterable[PhaseTimes]], times_s: Callable[[PhaseTimes], Iterable[float] | None]
) -> dict[str, list[float]]:
    """Return, for each phase, what `times_s` returns for it in all trials, as one list. Phases are in their order in a
    step; phases without times are left out."""
    return grouped((phase.name, time_s) for phases in trials for phase in phases for time_s in times_s(phase) or ())


def times_s(phase: PhaseTimes) -> tuple[float, ...]:
    """Return a phase's seconds in each step: on the device if it was measured there, else on the host."""
    return phase.device_s or phase.host_s


def critical_rank(parts: Sequence[RankPart]) -> RankPart:
    """Return the rank that the others wait for: the one with the least time in the all-reduce. Its phases make up the
    step. Raises ValueError without ranks."""
    return min(parts, key=lambda part: sum(sum(times_s(p)) for p in part.phases if p.name == ALLREDUCE))
