"""The next trial of a gate, the end of each cell, and the judgement of the whole: pure functions of frozen state.

Base and current run in turns, cell by cell; which side goes first changes from round to round (ABBA), so that a drift
of the machine falls on both alike, and the two trials of a round are compared with each other where it does
(`analysis.rounds`). When all cells that go on have the trials of a look, `phase_tests.judge_interim` judges them
together; a cell that is decided stops, an inconclusive one goes on to the next look. From the second look on the cells
that it will likeliest decide come first, each with all its trials: a budget that ends on the way has paid for whole
ones. Knows nothing of processes, files or clocks.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tcbench.analysis import phase_tests, rounds
from tcbench.analysis.compare import (
    ACCIDENTS,
    METRICS,
    THROUGHPUT,
    CellComparison,
    Comparison,
    Metric,
    Side,
    Trials,
    compare,
    phase_trials,
    power,
)
from tcbench.analysis.phase_tests import PhaseTrials
from tcbench.analysis.verdict import Decided, Interim, Rule
from tcbench.analysis.welch import LEAST_TRIALS
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Record

Role = Literal["base", "current"]
BASE: Role = "base"
CURRENT: Role = "current"

_JUDGED = ("regression", "pass", "improved")
"""Verdicts that figures give."""


@dataclass(frozen=True)
class Trial:
    """One trial to run: of which side and cell (its place in the gate), its number there, and for which look."""

    side: Role
    cell: int
    number: int
    interim: int


@dataclass(frozen=True)
class Settling:
    """One cell so far: the trials of both sides, how many looks were taken, and by each metric the decision of the
    look that made one."""

    metrics: tuple[Metric, ...]
    decisions: tuple[Decided | None, ...]
    base: tuple[Record, ...] = ()
    current: tuple[Record, ...] = ()
    interims_taken: int = 0

    def trials(self, side: Role) -> tuple[Record, ...]:
        return self.base if side == BASE else self.current

    def ok(self, side: Role) -> int:
        return sum(record.status == "ok" for record in self.trials(side))

    @property
    def even(self) -> bool:
        """Whether both sides run, and have as many trials."""
        return not self.gave_up and self.ok(BASE) == self.ok(CURRENT)

    def figures(self, side: Role, metric: int) -> list[float]:
        """Those of the trials that are ok and tell one, turned so that more is better."""
        by = self.metrics[metric]
        figures = (by.of(record) for record in self.trials(side) if record.status == "ok")
        return [figure if by.more_is_better else 1 / figure for figure in figures if figure is not None]

    def phases(self, metric: int, trials: int) -> PhaseTrials:
        """The phases of both sides' first trials beside the metric, throughput."""
        base, current = ([r for r in self.trials(side) if r.status == "ok"] for side in (BASE, CURRENT))
        before, after = Trials(base[:trials], None), Trials(current[:trials], None)
        rates, others = (self.figures(side, metric)[:trials] for side in (BASE, CURRENT))
        step_s = before.cell.images_per_step / statistics.geometric_mean(rates)
        return phase_trials(before, after, step_s, rounds.estimate(others, rates).by_round)

    def apart(self, trials: int, log: float) -> float:
        """How many of its errors the first metric's ratio by the first trials lies from a ratio whose logarithm is
        `log`: the farther, the likelier more of them decide."""
        current, base = (self.figures(side, 0)[:trials] for side in (CURRENT, BASE))
        if min(len(current), len(base)) < LEAST_TRIALS:
            return 0.0
        ratio = rounds.estimate(current, base).ratio
        return abs(ratio.log - log) / ratio.error if ratio.error else math.inf

    @functools.cached_property
    def gave_up(self) -> Role | None:
        """The side that cannot give its figures: one that failed twice, or once for good."""
        for side in (CURRENT, BASE):
            failures = [record.status for record in self.trials(side) if record.status != "ok"]
            if len(failures) > 1 or any(status not in ACCIDENTS for status in failures):
                return side
        return None

    @functools.cached_property
    def decided(self) -> bool:
        """By every metric that both sides tell."""
        return bool(self.interims_taken) and all(
            decision is not None or not all(self.figures(side, metric) for side in (BASE, CURRENT))
            for metric, decision in enumerate(self.decisions)
        )

    def over(self, interims: Sequence[Interim]) -> bool:
        if self.gave_up:
            return bool(self.base and self.current)
        return self.decided or self.interims_taken == len(interims)

    def after(self, side: Role, record: Record) -> Settling:
        trials = (*self.trials(side), record)
        return replace(self, base=trials) if side == BASE else replace(self, current=trials)


@dataclass(frozen=True)
class Gate:
    """All cells so far. Immutable: `after` returns the next state."""

    cells: tuple[Settling, ...]
    interims: tuple[Interim, ...]
    metrics: tuple[Metric, ...]

    def certain(self) -> tuple[Trial, ...]:
        """The trials that will run whatever they say, in order: those to the end of each cell's present look."""
        going = [(place, cell) for place, cell in enumerate(self.cells) if not cell.over(self.interims)]
        numbers = range(self.interims[-1].trials)
        turns = [(number, *one) for number in numbers for one in going]
        if going and (look := going[0][1].interims_taken):
            seen, worst = self.interims[look - 1].trials, math.log(1 - self.interims[look].rule.threshold)
            going.sort(key=lambda one: -one[1].apart(seen, worst))
            turns = [(number, *one) for one in going for number in numbers]
        trials = []
        for number, place, cell in turns:
            # Beside a side that gave up, one trial of the other tells what it does.
            if number < (1 if cell.gave_up else self.interims[cell.interims_taken].trials):
                # The side that goes first changes from round to round: base current, current base, base current, ...
                for side in (BASE, CURRENT) if number % 2 == 0 else (CURRENT, BASE):
                    if cell.ok(side) <= number and side != cell.gave_up:
                        failed = len(cell.trials(side)) - cell.ok(side)
                        trials.append(Trial(side, place, number + failed, cell.interims_taken))
        return tuple(trials)

    def after(self, trial: Trial, record: Record) -> Gate:
        """With a trial's record, and the look that it may complete: all cells that go on are judged together."""
        cell = self.cells[trial.cell].after(trial.side, record)
        grown = replace(self, cells=(*self.cells[: trial.cell], cell, *self.cells[trial.cell + 1 :]))
        return grown if grown.certain() else grown.ended()

    def ended(self) -> Gate:
        """After the look that goes on, of cells with all its trials: where it is complete, or no trial is to follow."""
        number = next((cell.interims_taken for cell in self.cells if not cell.over(self.interims)), None)
        return self if number is None else self._judged(number)

    def _tells(self, cell: Settling, metric: int, number: int) -> bool:
        """Whether a cell has the figures of a look, or of that which decided it. What gave up tells nothing."""
        decided = cell.decisions[metric]
        trials = self.interims[decided[1] if decided else number].trials
        return not cell.gave_up and all(len(cell.figures(side, metric)) >= trials for side in (BASE, CURRENT))

    def _judged(self, number: int) -> Gate:
        decisions: list[list[Decided | None]] = [list(cell.decisions) for cell in self.cells]
        for metric in range(len(self.metrics)):
            there = [place for place, cell in enumerate(self.cells) if self._tells(cell, metric, number)]
            figures = [(self.cells[n].figures(CURRENT, metric), self.cells[n].figures(BASE, metric)) for n in there]
            before = [self.cells[n].decisions[metric] for n in there]
            of_phases = [phase_tests.NONE] * len(there)
            if self.metrics[metric] is THROUGHPUT:
                seen = [self.interims[one[1] if one else number].trials for one in before]
                of_phases = [self.cells[n].phases(metric, trials) for n, trials in zip(there, seen, strict=True)]
            judged = phase_tests.judge_interim(figures, of_phases, before, number, self.interims)
            for place, decision in zip(there, judged, strict=True):
                decisions[place][metric] = decision
        trials = self.interims[number].trials
        cells = (
            replace(cell, decisions=tuple(made), interims_taken=number + 1)
            if not cell.over(self.interims) and min(cell.ok(BASE), cell.ok(CURRENT)) >= trials
            else cell
            for cell, made in zip(self.cells, decisions, strict=True)
        )
        return replace(self, cells=tuple(cells))


def start(cells: int, interims: Sequence[Interim], metrics: Sequence[str] = ("throughput",)) -> Gate:
    """Before the first trial. `metrics` are names of METRICS."""
    those = tuple(METRICS[name] for name in metrics)
    return Gate(
        (Settling(those, (None,) * len(metrics)),) * cells,
        tuple(replace(interim, rule=interim.rule.among(len(metrics))) for interim in interims),
        those,
    )


def replay(state: Gate, cells: Sequence[Cell], kept: Mapping[Role, Iterable[Record]]) -> Gate:
    """The gate after the trials that were kept, in whatever order they ran."""
    records = {(side, one.cell.key, one.trial): one for side, of_side in kept.items() for one in of_side}

    def of(trial: Trial) -> Record | None:
        return records.get((trial.side, cells[trial.cell].key, trial.number))

    while (trial := next(filter(of, state.certain()), None)) and (record := of(trial)):
        state = state.after(trial, record)
    return state


# ---------------------------------------------------------------------------------------------- what the whole says


def comparison(
    gate: Gate,
    cells: Sequence[Cell],
    base: Iterable[Record],
    current: Iterable[Record],
    rule: Rule,
    ended: str = "the gate ended",
) -> Comparison:
    """Compare the records by the looks that were taken: each cell and metric is judged by the trials and the level of
    the look that decided it, of what is undecided by those of the last look taken. What no look decided is never
    anything better than inconclusive; `ended` says why it was not gone on with where looks were left."""
    of_sides = ((BASE, grouped((r.cell.key, r) for r in base)), (CURRENT, grouped((r.cell.key, r) for r in current)))
    records = {side: [by_key.get(cell.key, []) for cell in cells] for side, by_key in of_sides}
    parts = [_by_metric(gate, cells, records, number, rule, ended) for number in range(len(gate.metrics))]
    first = parts[0]
    return replace(
        first,
        cells=tuple(cell for row in zip(*(part.cells for part in parts), strict=True) for cell in row),
        means=tuple(mean for part in parts for mean in part.means),
        paired=len(cells),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def missing(cell: Cell, metrics: Sequence[Metric]) -> tuple[CellComparison, ...]:
    """A cell that only base's scenario has, by each metric."""
    base = _not_run(cell, "its scenario has it; not run")
    return tuple(CellComparison(metric, base, None, "missing", failing=True) for metric in metrics)


def summary(gate: Gate) -> str:
    """The verdicts made after each number of trials: `4 decided after 3 trials a side, 1 after 6; 2 undecided`."""
    measured = [cell for cell in gate.cells if not cell.gave_up]
    decisions = [decision for cell in measured for decision in cell.decisions]
    counts = [
        (interim.trials, sum(d is not None and d[1] == n for d in decisions)) for n, interim in enumerate(gate.interims)
    ]
    decided = [f"{count} after {trials}" for trials, count in counts if count]
    if decided:
        decided[0] = f"{decided[0].replace(' ', ' decided ', 1)} trials a side"
    undecided = sum(
        decision is None and (not cell.interims_taken or all(cell.figures(side, metric) for side in (BASE, CURRENT)))
        for cell in measured
        for metric, decision in enumerate(cell.decisions)
    )
    parts = [", ".join(decided)] * bool(decided) + [f"{undecided} undecided"] * bool(undecided)
    return "; ".join(parts)


def _by_metric(
    gate: Gate,
    cells: Sequence[Cell],
    records: Mapping[Role, Sequence[Sequence[Record]]],
    metric: int,
    rule: Rule,
    ended: str,
) -> Comparison:
    seen: dict[Role, list[Record]] = {BASE: [], CURRENT: []}
    decisions = {}
    last = gate.interims[-1]
    for place, (cell, state) in enumerate(zip(cells, gate.cells, strict=True)):
        if not (state.base and state.current):
            continue
        decided = state.decisions[metric]
        interim = decided[1] if decided else max(0, state.interims_taken - 1)
        decisions[cell.key] = decided[0] if decided else "inconclusive"
        # Trials beyond the interim judgement, or on the way to one that was never made, do not count.
        cut = decided is not None or (state.interims_taken and not state.gave_up)
        for side in (BASE, CURRENT):
            of_cell = records[side][place]
            seen[side] += _first_ok(of_cell, gate.interims[interim].trials) if cut else of_cell
    of = (gate.metrics[metric].name,)
    judged = compare(seen[BASE], seen[CURRENT], of, last.rule, in_turns=True, decisions=decisions)
    by_key = {one.cell.key: one for one in judged.cells}
    compared = []
    for cell, state in zip(cells, gate.cells, strict=True):
        one = by_key.get(cell.key)
        if one is None:  # it has no trial on one side at all
            nothing = _not_run(cell, "no trial")
            one = CellComparison(gate.metrics[metric], nothing, nothing, "inconclusive", more_trials=LEAST_TRIALS)
        compared.append(one if state.decisions[metric] else _open(one, state, gate, ended))
    seen_by_the_last = power(compared, last.rule, last.trials)
    return replace(judged, rule=rule, cells=tuple(compared), power=seen_by_the_last)


def _not_run(cell: Cell, why: str) -> Side:
    return Side(cell, machine=None, status="skipped", reason=why, trials=0, trials_ok=0)


def _open(cell: CellComparison, state: Settling, gate: Gate, ended: str) -> CellComparison:
    """A cell that no look decided: never a verdict on figures, and with the reason."""
    if cell.verdict not in (*_JUDGED, "inconclusive"):
        return cell
    if not state.gave_up and state.interims_taken == len(gate.interims):
        return replace(cell, verdict="inconclusive", failing=False, culprit=None)
    if state.gave_up:
        side = cell.current if state.gave_up == CURRENT else cell.base
        failed = next(r.status for r in state.trials(state.gave_up) if r.status != "ok")
        why = f"{state.gave_up} gave up after {side.trials_ok if side else 0} ok trials: {failed}"
    else:
        trials = gate.interims[state.interims_taken].trials
        at = f"look {state.interims_taken + 1} of {len(gate.interims)} ({trials} trials a side)"
        why = f"{ended} before {at}"
    return replace(cell, verdict="inconclusive", failing=False, culprit=None, why=why, held_back=None)


def _first_ok(records: Sequence[Record], n: int) -> Sequence[Record]:
    """Up to the n-th that is ok."""
    ok = [place for place, record in enumerate(records, start=1) if record.status == "ok"]
    return records[: ok[n - 1]] if len(ok) >= n else records
