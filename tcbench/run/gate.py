"""A gate's next trials, the end of each cell, and the judgement of the whole: pure functions of frozen state.

Base and current run in turns, cell by cell. Which side goes first alternates from round to round (ABBA), so that drift
of the machine affects both sides equally; if it drifts, the two trials of a round are compared with each other
(`analysis.rounds`). When all unfinished cells have the trials of a look, `compare` judges them together. A cell that is
decided stops; an inconclusive one continues to the next look. From the second look on, the cells that are most likely
to be decided run first, each with all its trials, so that a budget that ends in between has completed some cells. This
module does not use processes, files or clocks."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import msgspec

from tcbench.analysis import machine_check, rounds
from tcbench.analysis.compare import (
    ACCIDENTS,
    METRICS,
    THROUGHPUT,
    CellComparison,
    Comparison,
    Metric,
    Side,
    Verdict,
    compare,
    power,
)
from tcbench.analysis.machine_check import MachineCheck, PairedRound
from tcbench.analysis.verdict import Decided, Decision, Interim, Rule
from tcbench.analysis.welch import LEAST_TRIALS
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Record

Role = Literal["base", "current"]
BASE: Role = "base"
CURRENT: Role = "current"

_GAVE_UP = " gave up after "
_DECISIONS: Mapping[str, Decision] = {"regression": "regression", "pass": "pass", "improved": "improved"}
"""The verdicts that a look can decide from figures."""


class GateVerdict(msgspec.Struct, frozen=True):
    """A gate's verdict on one cell by one metric, as stored in its file. `cell` is the cell's label. `why` is the
    reason for a verdict that does not follow from figures. The verdict rests on the first `trials` successful trials of
    each side (None: on all trials). `by_figures` is the verdict that `unstable` replaced."""

    cell: str
    metric: str
    verdict: Verdict
    failing: bool = False
    why: str | None = None
    trials: int | None = None
    by_figures: Verdict | msgspec.UnsetType = msgspec.UNSET

    @property
    def decision(self) -> Decision:
        """The decision by figures; `inconclusive` if there is none."""
        return _DECISIONS.get(self.by_figures or self.verdict, "inconclusive")

    @property
    def gave_up(self) -> bool:
        """Whether a side of the cell gave up."""
        return self.verdict == "changed status" or _GAVE_UP in (self.why or "")


@dataclass(frozen=True)
class Trial:
    """One trial to run: its side, the index of its cell in the gate, its number among the cell's trials on that side,
    and the index of the look for which it is needed."""

    side: Role
    cell: int
    number: int
    interim: int


@dataclass(frozen=True)
class CellState:
    """The state of one cell in a gate. `decisions` holds, for each metric, the decision with the index of its look, or
    None while it is undecided. `base` and `current` are the records of the trials so far."""

    metrics: tuple[Metric, ...]
    decisions: tuple[Decided | None, ...]
    base: tuple[Record, ...] = ()
    current: tuple[Record, ...] = ()
    interims_taken: int = 0

    def trials(self, side: Role) -> tuple[Record, ...]:
        """Return the records of one side."""
        return self.base if side == BASE else self.current

    def ok(self, side: Role) -> int:
        """Return the number of successful trials of one side."""
        return sum(record.status == "ok" for record in self.trials(side))

    @property
    def even(self) -> bool:
        """Whether no side gave up and both have the same number of successful trials."""
        return not self.gave_up and self.ok(BASE) == self.ok(CURRENT)

    def figures(self, side: Role, metric: int) -> list[float]:
        """Return the figures of a side's successful trials by the metric at this index. Figures where less is better
        are inverted, so that more is always better."""
        definition = self.metrics[metric]
        figures = (definition.read(record) for record in self.trials(side) if record.status == "ok")
        return [figure if definition.more_is_better else 1 / figure for figure in figures if figure is not None]

    def standard_errors_from(self, trials: int, log: float) -> float:
        """Return the distance between the measured log ratio and `log` in standard errors, by the first metric and the
        first `trials` successful trials of each side. It is 0 with fewer than two, and infinite if the error is 0.
        Cells far from the threshold are the likeliest to be decided by more trials."""
        current, base = (self.figures(side, 0)[:trials] for side in (CURRENT, BASE))
        if min(len(current), len(base)) < LEAST_TRIALS:
            return 0.0
        ratio = rounds.estimate(current, base).ratio
        return abs(ratio.log - log) / ratio.error if ratio.error else math.inf

    @property
    def paired_rounds(self) -> tuple[PairedRound, ...]:
        """The throughput of current over base in each round in which both sides succeeded."""
        base, current = (
            [(r.started_at, rate) for r in self.trials(side) if r.status == "ok" and (rate := THROUGHPUT.read(r))]
            for side in (BASE, CURRENT)
        )
        pairs = zip(base, current, strict=False)
        return tuple(PairedRound(began_at, math.log(rate / base_rate)) for (began_at, base_rate), (_, rate) in pairs)

    @functools.cached_property
    def gave_up(self) -> Role | None:
        """The side that gives no more figures, because it had two failed trials or one that was no accident
        (`ACCIDENTS`). None if there is no such side."""
        for side in (CURRENT, BASE):
            failures = [record.status for record in self.trials(side) if record.status != "ok"]
            if len(failures) > 1 or any(status not in ACCIDENTS for status in failures):
                return side
        return None

    @functools.cached_property
    def decided(self) -> bool:
        """Whether a look was taken and there is a decision by every metric for which both sides have figures."""
        return bool(self.interims_taken) and all(
            decision is not None or not all(self.figures(side, metric) for side in (BASE, CURRENT))
            for metric, decision in enumerate(self.decisions)
        )

    def is_over(self, interims: Sequence[Interim]) -> bool:
        """Return whether the cell needs no more trials. `interims` are all looks of the gate."""
        if self.gave_up:
            return bool(self.base and self.current)
        return self.decided or self.interims_taken == len(interims)

    def with_record(self, side: Role, record: Record) -> CellState:
        """Return the state after one more trial of a side."""
        trials = (*self.trials(side), record)
        return replace(self, base=trials) if side == BASE else replace(self, current=trials)


@dataclass(frozen=True)
class Gate:
    """The state of all cells. Immutable: `with_record` returns the next state."""

    cells: tuple[CellState, ...]
    interims: tuple[Interim, ...]
    metrics: tuple[Metric, ...]

    def certain(self) -> tuple[Trial, ...]:
        """Return the trials that each unfinished cell still needs for its present look, in the order in which they run.
        None of them depends on the results of the others. After the first look, the cells farthest from the threshold
        come first. Empty at the end of the gate."""
        unfinished = [(place, cell) for place, cell in enumerate(self.cells) if not cell.is_over(self.interims)]
        numbers = range(self.interims[-1].trials)
        turns = [(number, *cell) for number in numbers for cell in unfinished]
        if unfinished and (look := unfinished[0][1].interims_taken):
            trials_seen, worst = self.interims[look - 1].trials, math.log(1 - self.interims[look].rule.threshold)
            unfinished.sort(key=lambda cell: -cell[1].standard_errors_from(trials_seen, worst))
            turns = [(number, *cell) for cell in unfinished for number in numbers]
        trials = []
        for number, place, cell in turns:
            # If one side gave up, a single trial of the other shows whether it runs.
            if number < (1 if cell.gave_up else self.interims[cell.interims_taken].trials):
                # The side that goes first changes from round to round: base current, current base, base current, ...
                for side in (BASE, CURRENT) if number % 2 == 0 else (CURRENT, BASE):
                    if cell.ok(side) <= number and side != cell.gave_up:
                        failed = len(cell.trials(side)) - cell.ok(side)
                        trials.append(Trial(side, place, number + failed, cell.interims_taken))
        return tuple(trials)

    def with_record(self, trial: Trial, record: Record) -> Gate:
        """Return the gate after a trial. If it completes a look, all unfinished cells are judged together."""
        cell = self.cells[trial.cell].with_record(trial.side, record)
        gate = replace(self, cells=(*self.cells[: trial.cell], cell, *self.cells[trial.cell + 1 :]))
        return gate if gate.certain() else gate.ended()

    def with_verdicts(self, verdicts: Sequence[GateVerdict]) -> Gate:
        """Return the gate with the looks and decisions behind these verdicts, which it made when its budget was spent.
        The cells of an incomplete look are judged at that look once and not again."""
        cells, looks = [], {interim.trials: look for look, interim in enumerate(self.interims)}
        for place, cell in enumerate(self.cells):
            cell_verdicts = verdicts[place * len(self.metrics) : (place + 1) * len(self.metrics)]
            cell_looks = [looks[verdict.trials] for verdict in cell_verdicts if verdict.trials in looks]
            decisions = tuple(
                (verdict.decision, looks[verdict.trials])
                if verdict.decision != "inconclusive" and verdict.trials in looks
                else decided
                for verdict, decided in zip(cell_verdicts, cell.decisions, strict=True)
            )
            interims_taken = max([cell.interims_taken, *(look + 1 for look in cell_looks)])
            cells.append(replace(cell, decisions=decisions, interims_taken=interims_taken))
        return replace(self, cells=tuple(cells))

    def ended(self) -> Gate:
        """Return the gate after its present look, which judges the cells that have all trials of the look."""
        number = next((cell.interims_taken for cell in self.cells if not cell.is_over(self.interims)), None)
        return self if number is None else self._judged(number)

    @property
    def looks_taken(self) -> int:
        """The number of looks so far."""
        return max((cell.interims_taken for cell in self.cells), default=0)

    @property
    def machine_check(self) -> MachineCheck:
        """Whether the machine stayed the same, by the rounds so far."""
        threshold = self.interims[-1].rule.threshold
        return machine_check.check([cell.paired_rounds for cell in self.cells], threshold)

    def verdicts(self, cells: Sequence[Cell], ended: str = "the gate ended") -> tuple[GateVerdict, ...]:
        """Return a verdict for each of the gate's `cells` by each metric, cell by cell. `ended` says why the gate
        stopped before a cell's remaining looks."""
        verdicts = []
        for cell, state in zip(cells, self.cells, strict=True):
            why, trials = self._left_open(state, ended)
            for metric, decided in zip(self.metrics, state.decisions, strict=True):
                verdict = GateVerdict(cell.label, metric.name, "inconclusive", why=why, trials=trials)
                if decided is not None:
                    verdict = GateVerdict(cell.label, metric.name, decided[0], trials=self.interims[decided[1]].trials)
                verdicts.append(verdict)
        return tuple(verdicts)

    def _left_open(self, cell: CellState, ended: str) -> tuple[str | None, int | None]:
        """Return why a cell is not decided although it has looks left, and the trials per side of its last look.

        The reason is None after all looks. The number is None if no look was taken or a side gave up."""
        looks = cell.interims_taken
        if cell.gave_up:
            failed = next(record.status for record in cell.trials(cell.gave_up) if record.status != "ok")
            return f"{cell.gave_up}{_GAVE_UP}{cell.ok(cell.gave_up)} ok trials: {failed}", None
        trials = self.interims[looks - 1].trials if looks else None
        if looks == len(self.interims):
            return None, trials
        trials_ahead = self.interims[looks].trials
        return f"{ended} before look {looks + 1} of {len(self.interims)} ({trials_ahead} trials a side)", trials

    def _judged(self, number: int) -> Gate:
        """Return the gate after its look with the index `number`. All cells that have the look's trials are judged
        together. A cell that is already decided keeps its decision, and its trials contribute to the pooled noise."""
        look, decisions = self.interims[number], [list(cell.decisions) for cell in self.cells]
        for metric, definition in enumerate(self.metrics):
            rows: list[_Row] = []
            for cell in self.cells:
                decided = cell.decisions[metric]
                n = self.interims[decided[1]].trials if decided else look.trials
                if not cell.gave_up and all(len(cell.figures(side, metric)) >= n for side in (BASE, CURRENT)):
                    rows.append(_Row(cell.base, cell.current, n, decided[0] if decided else None))
            rule = look.rule.among(len(self.metrics))
            # The cells that are not judged yet keep their part of the level for this look.
            rule = replace(rule, change_level=rule.change_level * len(rows) / len(self.cells))
            compared = _compare(rows, definition.name, rule)
            new_decisions = {judged.cell.key: _DECISIONS.get(judged.verdict) for judged in compared.cells}
            for cell, cell_decisions in zip(self.cells, decisions, strict=True):
                decision = new_decisions.get(cell.base[0].cell.key) if cell.base else None
                if decision and cell_decisions[metric] is None:
                    cell_decisions[metric] = decision, number
        cells = (
            replace(cell, decisions=tuple(cell_decisions), interims_taken=number + 1)
            if not cell.is_over(self.interims) and min(cell.ok(BASE), cell.ok(CURRENT)) >= look.trials
            else cell
            for cell, cell_decisions in zip(self.cells, decisions, strict=True)
        )
        return replace(self, cells=tuple(cells))


def start(cells: int, interims: Sequence[Interim], metrics: Sequence[str] = ("throughput",)) -> Gate:
    """Return a gate of `cells` cells with these looks, before its first trial. `metrics` are names in METRICS."""
    chosen = tuple(METRICS[name] for name in metrics)
    return Gate((CellState(chosen, (None,) * len(chosen)),) * cells, tuple(interims), chosen)


def replay(state: Gate, cells: Sequence[Cell], stored: Mapping[Role, Iterable[Record]]) -> Gate:
    """Return the gate after the stored trials, whatever the order in which they ran."""
    records = {(side, record.cell.key, record.trial): record for side, group in stored.items() for record in group}

    def stored_record(trial: Trial) -> Record | None:
        return records.get((trial.side, cells[trial.cell].key, trial.number))

    while (trial := next(filter(stored_record, state.certain()), None)) and (record := stored_record(trial)):
        state = state.with_record(trial, record)
    return state


# ---------------------------------------------------------------------------------------------------- the comparison


def comparison(
    verdicts: Sequence[GateVerdict],
    cells: Sequence[Cell],
    base: Iterable[Record],
    current: Iterable[Record],
    last: Interim,
) -> Comparison:
    """Return the comparison behind a gate's verdicts. Figures, intervals and phases come from the trials on which each
    verdict rests.

    `verdicts` hold every metric of the first cell, then of the second, and so on. `last` is the gate's last look; its
    level applies to the intervals and the statistical power."""
    bases, currents = (grouped((record.cell.key, record) for record in side) for side in (base, current))
    metrics = list(dict.fromkeys(verdict.metric for verdict in verdicts))
    rule, parts = last.rule.among(len(metrics)), []
    for number, metric in enumerate(metrics):
        rows = list(zip(cells, verdicts[number :: len(metrics)], strict=False))
        measured = [
            _Row(bases[cell.key], currents[cell.key], verdict.trials, verdict.decision)
            for cell, verdict in rows
            if cell.key in bases and cell.key in currents
        ]
        part = _compare(measured, metric, rule)
        by_key = {cell.cell.key: cell for cell in part.cells}
        compared = [
            _with_reason(by_key.get(cell.key) or _without_trials(cell, metric), verdict) for cell, verdict in rows
        ]
        parts.append(replace(part, cells=tuple(compared), power=power(compared, rule, last.trials)))
    return replace(
        parts[0],
        rule=Rule(rule.threshold),
        cells=tuple(cell for row in zip(*(part.cells for part in parts), strict=True) for cell in row),
        means=tuple(mean for part in parts for mean in part.means),
        paired=len(cells),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def summary(verdicts: Sequence[GateVerdict]) -> str:
    """Return the number of verdicts by the trials they took: `4 decided after 3 trials a side, 1 after 6; 2
    undecided`."""
    counts = Counter(verdict.trials or 0 for verdict in verdicts if verdict.verdict in _DECISIONS)
    parts = [f"{count} after {trials}" for trials, count in sorted(counts.items())]
    if parts:
        parts[0] = f"{parts[0].replace(' ', ' decided ', 1)} trials a side"
    undecided = sum(verdict.verdict == "inconclusive" and not verdict.gave_up for verdict in verdicts)
    return "; ".join(filter(None, [", ".join(parts), f"{undecided} undecided" * bool(undecided)]))


def _with_reason(cell: CellComparison, verdict: GateVerdict) -> CellComparison:
    """Return the cell. If the gate left it undecided, `why` is the gate's reason, and `held_back` is dropped."""
    left_open = cell.verdict == "inconclusive" and verdict.why is not None
    return replace(cell, why=verdict.why, held_back=None) if left_open else cell


def _without_trials(cell: Cell, metric: str) -> CellComparison:
    """Return the comparison of a cell that has no trials on one or both sides."""
    side = Side(cell, machine=None, status="skipped", reason="no trial", trials=0, trials_ok=0)
    return CellComparison(METRICS[metric], side, side, "inconclusive", more_trials=LEAST_TRIALS)


class _Row(NamedTuple):
    """The records of one cell on both sides, and its decision if it has one. Only the records up to the successful one
    with the number `trials` count (None: all)."""

    base: Sequence[Record]
    current: Sequence[Record]
    trials: int | None
    decision: Decision | None


def _compare(rows: Sequence[_Row], metric: str, rule: Rule) -> Comparison:
    """Return the comparison of cells by a metric. Cells with a decision keep it, the others are judged by `rule`."""
    base = [record for row in rows for record in _first_ok(row.base, row.trials)]
    current = [record for row in rows for record in _first_ok(row.current, row.trials)]
    decisions = {row.base[0].cell.key: row.decision for row in rows if row.decision is not None}
    return compare(base, current, (metric,), rule, in_turns=True, decisions=decisions)


def _first_ok(records: Sequence[Record], n: int | None) -> Sequence[Record]:
    """Return the records up to the n-th successful one, or all if n is None."""
    ok = [place for place, record in enumerate(records, start=1) if record.status == "ok"]
    return records if n is None or len(ok) < n else records[: ok[n - 1]]
