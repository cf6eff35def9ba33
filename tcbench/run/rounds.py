"""The order of a run's trials, in rounds over all its cells: the next trial, and the expected further ones.

A round measures each cell once, so that changes of the machine affect all cells equally and their numbers of trials
differ by at most one. Within a round, the cells of one batch size take turns on a CPU. The first round is always
completed. After it, a trial starts only if the budget has time for what its cell has cost so far. Pure functions of
frozen state, without processes, files or clocks."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tcbench.analysis.bottleneck import INPUT
from tcbench.analysis.compare import ACCIDENTS
from tcbench.core.groups import grouped
from tcbench.core.record import FINAL_STATUSES, Cell, Measurement, Record, Status, cell_settings
from tcbench.hardware import machine
from tcbench.run.devices import runs_on_host
from tcbench.run.eta import TimeLeft, estimate
from tcbench.run.plan import Plan, PlannedCell

_STANDARD_SIZES = (256, 64)
"""The batch sizes by which GPUs are usually compared. If a run has neither, its largest is used."""
_LEAST_TRIAL_S = 0.01
"""The least time that a trial is assumed to take."""


@dataclass(frozen=True)
class Rounds:
    """The state of a run.

    - `cells`: in the order of measurement.
    - `trials`, `budget_s`: the limits of the plan, None for no limit.
    - `ends`: for each cell, the status of each finished trial by the trial's number.
    - `spent_s`: the total duration of the finished trials; `costs`: the estimate of the durations of further trials."""

    cells: tuple[PlannedCell, ...]
    trials: int | None
    budget_s: float | None
    ends: tuple[dict[int, Status], ...]
    spent_s: float = 0.0
    costs: TimeLeft = field(default_factory=TimeLeft)

    def ahead(self) -> Iterator[tuple[PlannedCell, int]]:
        """Yield the trials to come in order, each as its cell and its number, as far as the budget allows by their
        expected durations. The first is the next trial to run; none is yielded at the end of the run."""
        left_s = float("inf") if self.budget_s is None else self.budget_s - self.spent_s
        costs_s = [0.0 if planned.skip_reason else self.costs.trial_s(planned.cell) for planned in self.cells]
        number, continuing = 0, list(range(len(self.cells)))
        while continuing and (self.trials is None or number < self.trials):
            skipped_any = False
            for place in continuing:
                if number in self.ends[place]:
                    continue
                cost_s = max(_LEAST_TRIAL_S, costs_s[place])
                if number and cost_s > left_s:
                    skipped_any = True
                    continue
                left_s -= cost_s
                yield self.cells[place], number
            if skipped_any:  # another round would make the numbers of trials differ by more than one
                return
            continuing = [place for place in continuing if self._goes_on(place)]
            number += 1

    def certain(self) -> int | None:
        """Return the number of further trials that will run however long they take: all of them without a budget, else
        those left of the first round. None if a budget decides about every further trial."""
        numbers = [number for _, number in self.ahead()]
        return (numbers.count(0) or None) if self.budget_s is not None else len(numbers)

    def ended_by_budget(self) -> bool:
        """Return whether no trial is left within the budget, but more would run without a budget."""
        return not any(self.ahead()) and any(replace(self, budget_s=math.inf).ahead())

    def ahead_s(self) -> float:
        """Return the expected seconds for the trials to come."""
        cells = tuple(planned.cell for planned, _ in self.ahead() if planned.skip_reason is None)
        return replace(self.costs, remaining=cells).remaining_s()

    def _goes_on(self, place: int) -> bool:
        """Return whether the cell at index `place` gets another trial. Skipped cells do not, nor, with a budget, cells
        that had a trial that is not ok."""
        ends = self.ends[place].values()
        return self.cells[place].skip_reason is None and (self.budget_s is None or all(end == "ok" for end in ends))

    def with_record(self, record: Record) -> Rounds:
        """Return the state after one more trial, whose record is given. A trial that runs again only takes time."""
        if runs_again_alone(record):
            return replace(self, spent_s=self.spent_s + record.duration_s)
        place = next(n for n, planned in enumerate(self.cells) if planned.cell == record.cell)
        ends = {**self.ends[place], record.trial: record.status}
        return replace(
            self,
            ends=(*self.ends[:place], ends, *self.ends[place + 1 :]),
            spent_s=self.spent_s + record.duration_s,
            costs=self.costs if record.status == "skipped" else self.costs.finished(record),
        )


def start(
    plan: Plan,
    before: Iterable[Record] = (),
    slowdown: float = 1.0,
    foreseen: Mapping[Cell, float] | None = None,
    earlier: Iterable[Record] = (),
) -> Rounds:
    """Return the state of a run of the plan at its start or when it is resumed.

    `before` holds the records of the run's earlier part, one per trial; its failed trials run again. `slowdown`,
    `foreseen` and `earlier` are described in `estimate`."""
    before = [record for record in before if any(planned.cell == record.cell for planned in plan.cells)]
    costs = estimate((), before, slowdown, foreseen, earlier, plan.turns_max_time_s)
    round_s = sum(costs.trial_s(planned.cell) for planned in plan.cells if planned.skip_reason is None)
    cells = tuple(in_order(plan.cells, in_haste=plan.budget_s is not None and round_s > plan.budget_s))
    # A cell that was skipped before and can run now still has to run.
    ends = [
        {
            record.trial: record.status
            for record in before
            if record.cell == planned.cell
            and record.status in FINAL_STATUSES
            and not runs_again_alone(record)
            and (record.status == "skipped") == (planned.skip_reason is not None)
        }
        for planned in cells
    ]
    spent_s = sum(record.duration_s for record in before)
    return Rounds(cells, plan.trials, plan.budget_s, tuple(ends), spent_s, costs)


def turn_group(ahead: Sequence[tuple[PlannedCell, int]], alone: Collection[str] = ()) -> list[tuple[PlannedCell, int]]:
    """Return the first trial of `ahead` and all trials that take turns with it: of the same round, network and batch
    size, on the host's processor. Cells whose keys are in `alone`, and a user's own code, run alone. The order is
    reversed in every second round, so that no cell always follows the same one."""
    (planned, number), cell = ahead[0], ahead[0][0].cell
    if not _takes_turns(planned) or cell.key in alone:
        return [(planned, number)]
    group = [
        (other, n)
        for other, n in ahead
        if n == number
        and (other.cell.model, other.cell.image_size, other.cell.batch_size)
        == (cell.model, cell.image_size, cell.batch_size)
        and _takes_turns(other)
        and other.cell.key not in alone
    ]
    return group if number % 2 == 0 else group[::-1]


def runs_again_alone(record: Record) -> bool:
    """Return whether a trial that took turns has to run again alone. The others may have caused its end, or its feed
    may have decoded images during their turns, so that its step waits too little for its input."""
    if not record.turns_began_at:
        return False
    return record.status in (*ACCIDENTS, "oom") or _waits_for_prefetched(record.measurement)


_WAITS = 0.1
"""The share of the step from which on waiting for prefetched input counts."""


def _waits_for_prefetched(measured: Measurement | None) -> bool:
    if measured is None or not measured.prefetch_depth:
        return False
    phases_s = {phase.name: sum(phase.host_s) for phase in measured.phases}
    return phases_s.get(INPUT, 0.0) > _WAITS * sum(phases_s.values())


def _takes_turns(planned: PlannedCell) -> bool:
    cell = planned.cell
    return planned.skip_reason is None and runs_on_host(cell) and not cell.is_own and cell.command is None


def differences(plan: Plan, before: Iterable[Record]) -> str:
    """Return in words how a run's records (`before`) differ from this plan: in the settings of its cells, or in the
    processor that measured them. Return "" if the run belongs to this plan."""
    before = tuple(before)
    processors = dict.fromkeys(record.environment.processor for record in before if record.environment)
    if foreign_names := [name for name in processors if name not in ("", machine.processor())]:
        return f"processor {', '.join(foreign_names)}, here {machine.processor() or 'unknown'}"
    measured = list(dict.fromkeys(record.cell for record in before))
    planned = [cell.cell for cell in plan.cells]
    # Older records do not name their plan: if they have only cells of this plan, they may be its beginning.
    if all(record.plan == plan.key or (record.plan is None and record.cell in planned) for record in before):
        return ""
    old, new = (_settings(cells) for cells in (measured, planned))
    both = {name: (old.get(name, ["none"]), new.get(name, ["none"])) for name in {**new, **old}}
    differing = {name: values for name, values in both.items() if set(values[0]) != set(values[1])}
    # An interrupted run lacks some cells: settings that only the run has say more.
    foreign = {name: (was, now) for name, (was, now) in differing.items() if not {*was, "none"} <= {*now, "none"}}
    changes = [
        f"{re.sub('[._]', ' ', name)} {', '.join(was[:4])}, here {', '.join(now[:4])}"
        for name, (was, now) in (foreign or differing).items()
    ]
    return "; ".join(changes) or f"{len(measured)} cells, here {len(planned)}"


def _settings(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Return the different values of each setting of the cells, by the setting's name. Rungs and the settings of
    ablations are left out, since the config's name includes them."""
    pairs = ((name, str(value)) for cell in cells for name, value in cell_settings(cell).items())
    values_by_name = grouped(pair for pair in pairs if not pair[0].startswith(("rungs", "scenario_cudnn")))
    return {name: list(dict.fromkeys(values)) for name, values in values_by_name.items()}


def in_order(cells: Sequence[PlannedCell], *, in_haste: bool = False) -> list[PlannedCell]:
    """Return the cells in the order of a round. First come the first and the last config of each ladder at the standard
    batch sizes, so that an interrupted run has the most important cells, then the others in the order of `cells`.
    With `in_haste`, the last configs of the ladders come before the first ones."""
    runnable = [planned for planned in cells if planned.skip_reason is None]
    feet, ladder_tops = _ends([planned.cell for planned in runnable])
    ends = {name: rank for rank, name in enumerate([*ladder_tops, *feet] if in_haste else [*feet, *ladder_tops])}
    sizes = {planned.cell.batch_size for planned in runnable}
    standard = [size for size in _STANDARD_SIZES if size in sizes] or sorted(sizes)[-1:]
    ranks = max((planned.cell.ranks for planned in runnable), default=1)
    first = [p for p in runnable if p.cell.batch_size in standard and p.cell.ranks == ranks and p.cell.config in ends]
    first.sort(key=lambda planned: (standard.index(planned.cell.batch_size), ends[planned.cell.config]))
    return [*first, *(planned for planned in cells if planned not in first)]


def _ends(cells: Sequence[Cell]) -> tuple[list[str], list[str]]:
    """Return the names of the first configs of the ladders, and those of the last configs in reverse order. A ladder
    consists of configs of one backend whose rungs extend each other."""
    configs = {cell.config: (cell.backend, cell.rungs) for cell in cells}

    def below(lower: str, upper: str) -> bool:
        """Return whether the config `upper` consists of all rungs of `lower` and further ones."""
        (backend, rungs), (upper_backend, upper_rungs) = configs[lower], configs[upper]
        return backend == upper_backend and len(rungs) < len(upper_rungs) and upper_rungs[: len(rungs)] == rungs

    tops = [top for top in configs if not any(below(top, other) for other in configs)]
    feet = [foot for foot in configs if foot not in tops and not any(below(other, foot) for other in configs)]
    ladder_tops = [top for top in reversed(tops) if any(below(foot, top) for foot in feet)]
    return feet, ladder_tops
