"""The trials of a run, round after round over all its cells: which comes next, and which will come as far as is known.

A round takes each cell once, so that what the machine does meanwhile falls on all alike and their numbers of trials
differ by one at most. The first is always completed; after it a trial begins only where the budget has time for what
its cell has cost so far. Pure functions of frozen state; knows nothing of processes, files or clocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tcbench.core.groups import grouped
from tcbench.core.record import FINAL_STATUSES, Cell, Record, Status, cell_settings
from tcbench.hardware import machine
from tcbench.run.eta import TimeLeft, estimate
from tcbench.run.plan import Plan, PlannedCell

_STANDARD_SIZES = (256, 64)
"""The batch sizes by which GPUs are compared; where a run has neither, its largest."""
_LEAST_TRIAL_S = 0.01


@dataclass(frozen=True)
class Rounds:
    """A run so far. `cells` are in the order they are measured in; `over` has each one's trials by their numbers."""

    cells: tuple[PlannedCell, ...]
    trials: int | None
    budget_s: float | None
    over: tuple[dict[int, Status], ...]
    spent_s: float = 0.0
    costs: TimeLeft = field(default_factory=TimeLeft)

    def ahead(self) -> Iterator[tuple[PlannedCell, int]]:
        """The trials to come, by what they are expected to cost; the first of them is the next."""
        left_s = float("inf") if self.budget_s is None else self.budget_s - self.spent_s
        costs_s = [0.0 if planned.skip_reason else self.costs.trial_s(planned.cell) for planned in self.cells]
        number, going = 0, list(range(len(self.cells)))
        while going and (self.trials is None or number < self.trials):
            left_out = False
            for place in going:
                if number in self.over[place]:
                    continue
                cost_s = max(_LEAST_TRIAL_S, costs_s[place])
                if number and cost_s > left_s:
                    left_out = True
                    continue
                left_s -= cost_s
                yield self.cells[place], number
            if left_out:  # the cells would get further apart
                return
            going = [place for place in going if self._goes_on(place)]
            number += 1

    def certain(self) -> int | None:
        """The number of trials to come that will run whatever they take: those of the first round, or all where no
        budget ends the run; None where only time decides."""
        numbers = [number for _, number in self.ahead()]
        return (numbers.count(0) or None) if self.budget_s is not None else len(numbers)

    def ended_by_budget(self) -> bool:
        """Whether only more time would bring more trials."""
        return not any(self.ahead()) and any(replace(self, budget_s=math.inf).ahead())

    def ahead_s(self) -> float:
        """Seconds that those are expected to take."""
        cells = tuple(planned.cell for planned, _ in self.ahead() if planned.skip_reason is None)
        return replace(self.costs, remaining=cells).remaining_s()

    def _goes_on(self, place: int) -> bool:
        """Whether the cell has more trials than one. Where time counts, not what failed or does not fit."""
        ends = self.over[place].values()
        return self.cells[place].skip_reason is None and (self.budget_s is None or all(end == "ok" for end in ends))

    def after(self, record: Record) -> Rounds:
        place = next(n for n, planned in enumerate(self.cells) if planned.cell == record.cell)
        over = {**self.over[place], record.trial: record.status}
        return replace(
            self,
            over=(*self.over[:place], over, *self.over[place + 1 :]),
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
    """A run of the plan; `before` are the records of its earlier part, one per trial. What failed there runs again.
    `slowdown`, `foreseen` and `earlier` as in `estimate`."""
    before = [record for record in before if any(planned.cell == record.cell for planned in plan.cells)]
    costs = estimate((), before, slowdown, foreseen, earlier)
    round_s = sum(costs.trial_s(planned.cell) for planned in plan.cells if planned.skip_reason is None)
    cells = tuple(in_order(plan.cells, in_haste=plan.budget_s is not None and round_s > plan.budget_s))
    # A cell that was skipped then and can run now is missing.
    over = [
        {
            record.trial: record.status
            for record in before
            if record.cell == planned.cell
            and record.status in FINAL_STATUSES
            and (record.status == "skipped") == (planned.skip_reason is not None)
        }
        for planned in cells
    ]
    spent_s = sum(record.duration_s for record in before)
    return Rounds(cells, plan.trials, plan.budget_s, tuple(over), spent_s, costs)


def differences(plan: Plan, before: Iterable[Record]) -> str:
    """The settings by which the cells of a run's records differ from the plan's, or the processor that measured them
    from this one; "" for a run of this plan."""
    before = tuple(before)
    processors = dict.fromkeys(record.environment.processor for record in before if record.environment)
    if foreign_names := [name for name in processors if name not in ("", machine.processor())]:
        return f"processor {', '.join(foreign_names)}, here {machine.processor() or 'unknown'}"
    measured = list(dict.fromkeys(record.cell for record in before))
    planned = [one.cell for one in plan.cells]
    # Records did not always name their plan: of this plan's cells alone they may be its beginning.
    if all(record.plan == plan.key or (record.plan is None and record.cell in planned) for record in before):
        return ""
    theirs, ours = (_settings(cells) for cells in (measured, planned))
    both = {name: (theirs.get(name, ["none"]), ours.get(name, ["none"])) for name in {**ours, **theirs}}
    differing = {name: values for name, values in both.items() if set(values[0]) != set(values[1])}
    # Of a run that did not come to its end cells are missing: more telling is what it has and the plan has not.
    foreign = {name: (was, here) for name, (was, here) in differing.items() if not {*was, "none"} <= {*here, "none"}}
    said = [
        f"{re.sub('[._]', ' ', name)} {', '.join(was[:4])}, here {', '.join(here[:4])}"
        for name, (was, here) in (foreign or differing).items()
    ]
    return "; ".join(said) or f"{len(measured)} cells, here {len(planned)}"


def _settings(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """The values that cells have of each setting."""
    of_cells = ((name, str(value)) for cell in cells for name, value in cell_settings(cell).items())
    said = grouped(pair for pair in of_cells if not pair[0].startswith(("rungs", "scenario_cudnn")))  # by config's name
    return {name: list(dict.fromkeys(values)) for name, values in said.items()}


def in_order(cells: Sequence[PlannedCell], *, in_haste: bool = False) -> list[PlannedCell]:
    """Cells in the order of a round: first the ends of the ladders (fp32, low precision, and the best of each) at the
    standard batch sizes, so that a run that is interrupted has what matters most; then the others as they come. In
    haste the best comes first of all."""
    runnable = [planned for planned in cells if planned.skip_reason is None]
    feet, climbed = _ends([planned.cell for planned in runnable])
    ends = {name: rank for rank, name in enumerate([*climbed, *feet] if in_haste else [*feet, *climbed])}
    sizes = {planned.cell.batch_size for planned in runnable}
    standard = [size for size in _STANDARD_SIZES if size in sizes] or sorted(sizes)[-1:]
    ranks = max((planned.cell.ranks for planned in runnable), default=1)
    first = [p for p in runnable if p.cell.batch_size in standard and p.cell.ranks == ranks and p.cell.config in ends]
    first.sort(key=lambda planned: (standard.index(planned.cell.batch_size), ends[planned.cell.config]))
    return [*first, *(planned for planned in cells if planned not in first)]


def _ends(cells: Sequence[Cell]) -> tuple[list[str], list[str]]:
    """The configs from which others climb, and those that end a climb, the last ladder's first."""
    configs = {cell.config: (cell.backend, cell.rungs) for cell in cells}

    def below(one: str, other: str) -> bool:
        (backend, rungs), (of, more) = configs[one], configs[other]
        return backend == of and len(rungs) < len(more) and more[: len(rungs)] == rungs

    tops = [one for one in configs if not any(below(one, other) for other in configs)]
    feet = [one for one in configs if any(below(one, o) for o in configs) and not any(below(o, one) for o in configs)]
    climbed = [top for top in reversed(tops) if any(below(foot, top) for foot in feet)]
    return feet, climbed
