"""The next trial of a gate, the end of each cell, and the judgement of the whole: pure functions of frozen state.

Base and current run in turns, cell by cell; which side goes first changes from round to round (ABBA), so that a drift
of the machine falls on both alike, and the two trials of a round are compared with each other where it does
(`analysis.rounds`). When all cells that go on have the trials of a look, `compare` judges them together; a cell that is
decided stops, an inconclusive one goes on to the next look. From the second look on the cells that it will likeliest
decide come first, each with all its trials: a budget that ends on the way has paid for whole ones. Knows nothing of
processes, files or clocks.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import msgspec

from tcbench.analysis import rounds
from tcbench.analysis.compare import (
    ACCIDENTS,
    METRICS,
    CellComparison,
    Comparison,
    Metric,
    Side,
    Verdict,
    compare,
    power,
)
from tcbench.analysis.verdict import Decided, Decision, Interim, Rule
from tcbench.analysis.welch import LEAST_TRIALS
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Record

Role = Literal["base", "current"]
BASE: Role = "base"
CURRENT: Role = "current"

_GAVE_UP = " gave up after "
_DECISIONS: Mapping[str, Decision] = {"regression": "regression", "pass": "pass", "improved": "improved"}
"""Verdicts that a look makes, by the figures."""


class GateVerdict(msgspec.Struct, frozen=True):
    """A gate's verdict on one cell by one metric, as its file holds it. `why`: the reason, where figures are none.
    `trials`: it rests on the first so many ok trials of each side; where that is None, on all trials."""

    cell: str
    metric: str
    verdict: Verdict
    failing: bool = False
    why: str | None = None
    trials: int | None = None

    @property
    def gave_up(self) -> bool:
        """Whether a side of the cell gave up."""
        return self.verdict == "changed status" or _GAVE_UP in (self.why or "")


@dataclass(frozen=True)
class Trial:
    """One trial to run: of which side and cell (its place in the gate), its number there, and for which look."""

    side: Role
    cell: int
    number: int
    interim: int


@dataclass(frozen=True)
class CellState:
    """One cell so far: the trials of both sides, the number of looks taken, and for each metric the decision and the
    look that made it, if one did."""

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
        figures = (by.read(record) for record in self.trials(side) if record.status == "ok")
        return [figure if by.more_is_better else 1 / figure for figure in figures if figure is not None]

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

    def after(self, side: Role, record: Record) -> CellState:
        trials = (*self.trials(side), record)
        return replace(self, base=trials) if side == BASE else replace(self, current=trials)


@dataclass(frozen=True)
class Gate:
    """All cells so far. Immutable: `after` returns the next state."""

    cells: tuple[CellState, ...]
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

    def verdicts(self, cells: Sequence[Cell], ended: str = "the gate ended") -> tuple[GateVerdict, ...]:
        """Return a verdict for each of the gate's `cells` by each metric, cell by cell. `ended` says why the gate
        stopped before the looks that a cell has left."""
        verdicts = []
        for cell, state in zip(cells, self.cells, strict=True):
            why, seen = self._left_open(state, ended)
            for metric, decided in zip(self.metrics, state.decisions, strict=True):
                verdict = GateVerdict(cell.label, metric.name, "inconclusive", why=why, trials=seen)
                if decided is not None:
                    verdict = GateVerdict(cell.label, metric.name, decided[0], trials=self.interims[decided[1]].trials)
                verdicts.append(verdict)
        return tuple(verdicts)

    def _left_open(self, cell: CellState, ended: str) -> tuple[str | None, int | None]:
        """Return why a cell has looks left, None if it has none, and the trials a side of its last look, if any."""
        taken = cell.interims_taken
        if cell.gave_up:
            failed = next(record.status for record in cell.trials(cell.gave_up) if record.status != "ok")
            return f"{cell.gave_up}{_GAVE_UP}{cell.ok(cell.gave_up)} ok trials: {failed}", None
        seen = self.interims[taken - 1].trials if taken else None
        if taken == len(self.interims):
            return None, seen
        return (
            f"{ended} before look {taken + 1} of {len(self.interims)} ({self.interims[taken].trials} trials a side)",
            seen,
        )

    def _judged(self, number: int) -> Gate:
        """Return the gate after its look `number`: all cells with the look's trials are judged together. A cell that is
        decided keeps its decision, and adds to the common noise with the trials that it took."""
        look, decisions = self.interims[number], [list(cell.decisions) for cell in self.cells]
        for metric, by in enumerate(self.metrics):
            rows: list[_Row] = []
            for cell in self.cells:
                decided = cell.decisions[metric]
                n = self.interims[decided[1]].trials if decided else look.trials
                if not cell.gave_up and all(len(cell.figures(side, metric)) >= n for side in (BASE, CURRENT)):
                    rows.append(_Row(cell.base, cell.current, n, decided[0] if decided else None))
            compared = _compare(rows, by.name, look.rule.among(len(self.metrics)))
            made = {judged.cell.key: _DECISIONS.get(judged.verdict) for judged in compared.cells}
            for cell, of_cell in zip(self.cells, decisions, strict=True):
                if cell.base and of_cell[metric] is None and (decision := made.get(cell.base[0].cell.key)):
                    of_cell[metric] = decision, number
        cells = (
            replace(cell, decisions=tuple(made), interims_taken=number + 1)
            if not cell.over(self.interims) and min(cell.ok(BASE), cell.ok(CURRENT)) >= look.trials
            else cell
            for cell, made in zip(self.cells, decisions, strict=True)
        )
        return replace(self, cells=tuple(cells))


def start(cells: int, interims: Sequence[Interim], metrics: Sequence[str] = ("throughput",)) -> Gate:
    """Before the first trial. `metrics` are names of METRICS."""
    chosen = tuple(METRICS[name] for name in metrics)
    return Gate((CellState(chosen, (None,) * len(chosen)),) * cells, tuple(interims), chosen)


def replay(state: Gate, cells: Sequence[Cell], kept: Mapping[Role, Iterable[Record]]) -> Gate:
    """The gate after the trials that were kept, in whatever order they ran."""
    records = {(side, one.cell.key, one.trial): one for side, of_side in kept.items() for one in of_side}

    def of(trial: Trial) -> Record | None:
        return records.get((trial.side, cells[trial.cell].key, trial.number))

    while (trial := next(filter(of, state.certain()), None)) and (record := of(trial)):
        state = state.after(trial, record)
    return state


# ---------------------------------------------------------------------------------------------------- the comparison


def comparison(
    verdicts: Sequence[GateVerdict],
    cells: Sequence[Cell],
    base: Iterable[Record],
    current: Iterable[Record],
    last: Interim,
) -> Comparison:
    """Return the comparison that a gate's verdicts stand for: figures, intervals and phases of the trials that each
    verdict rests on. `verdicts` hold every metric of the first cell, then of the second; `last` is the gate's last
    look, whose level the intervals and the statistical power have."""
    sides = [grouped((record.cell.key, record) for record in side) for side in (base, current)]
    metrics = list(dict.fromkeys(verdict.metric for verdict in verdicts))
    rule, parts = last.rule.among(len(metrics)), []
    for number, metric in enumerate(metrics):
        rows = list(zip(cells, verdicts[number :: len(metrics)], strict=False))
        both = [(cell.key, verdict) for cell, verdict in rows if all(cell.key in side for side in sides)]
        seen = [
            _Row(sides[0][key], sides[1][key], verdict.trials, _DECISIONS.get(verdict.verdict, "inconclusive"))
            for key, verdict in both
        ]
        compared = _compare(seen, metric, rule)
        by_key = {cell.cell.key: cell for cell in compared.cells}
        kept = [_with_reason(by_key.get(cell.key) or _without_trials(cell, metric), verdict) for cell, verdict in rows]
        parts.append(replace(compared, cells=tuple(kept), power=power(kept, rule, last.trials)))
    return replace(
        parts[0],
        rule=Rule(rule.threshold),
        cells=tuple(cell for row in zip(*(part.cells for part in parts), strict=True) for cell in row),
        means=tuple(mean for part in parts for mean in part.means),
        paired=len(cells),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def summary(verdicts: Sequence[GateVerdict]) -> str:
    """Count verdicts by the trials that they took: `4 decided after 3 trials a side, 1 after 6; 2 undecided`."""
    counts = Counter(verdict.trials or 0 for verdict in verdicts if verdict.verdict in _DECISIONS)
    parts = [f"{count} after {trials}" for trials, count in sorted(counts.items())]
    if parts:
        parts[0] = f"{parts[0].replace(' ', ' decided ', 1)} trials a side"
    undecided = sum(verdict.verdict == "inconclusive" and not verdict.gave_up for verdict in verdicts)
    return "; ".join(filter(None, [", ".join(parts), f"{undecided} undecided" * bool(undecided)]))


def _with_reason(cell: CellComparison, verdict: GateVerdict) -> CellComparison:
    """Return the cell with the reason for which the gate left it open."""
    left_open = cell.verdict == "inconclusive" and verdict.why is not None
    return replace(cell, why=verdict.why, held_back=None) if left_open else cell


def _without_trials(cell: Cell, metric: str) -> CellComparison:
    side = Side(cell, machine=None, status="skipped", reason="no trial", trials=0, trials_ok=0)
    return CellComparison(METRICS[metric], side, side, "inconclusive", more_trials=LEAST_TRIALS)


class _Row(NamedTuple):
    """A cell's records of both sides, of which those up to the n-th ok one count (None: all), and what is decided."""

    base: Sequence[Record]
    current: Sequence[Record]
    trials: int | None
    decision: Decision | None


def _compare(rows: Sequence[_Row], metric: str, rule: Rule) -> Comparison:
    """Compare cells by a metric; those without a decision are judged."""
    base = [record for row in rows for record in _first_ok(row.base, row.trials)]
    current = [record for row in rows for record in _first_ok(row.current, row.trials)]
    decisions = {row.base[0].cell.key: row.decision for row in rows if row.decision is not None}
    return compare(base, current, (metric,), rule, in_turns=True, decisions=decisions)


def _first_ok(records: Sequence[Record], n: int | None) -> Sequence[Record]:
    """Return the records up to the n-th that is ok; all of them where n is None."""
    ok = [place for place, record in enumerate(records, start=1) if record.status == "ok"]
    return records if n is None or len(ok) < n else records[: ok[n - 1]]
