"""The time that an undecided gate still needs, and the command that continues."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tcbench.core.record import Record
from tcbench.run import gate
from tcbench.run.gate import Gate
from tcbench.run.gate_file import GateFile
from tcbench.show.app import words_again
from tcbench.show.format import counted, duration
from tcbench.show.next_steps import NextStep

_MOST_SUGGESTED_S = 7200.0
"""A new gate that would need longer than this is not suggested."""


@dataclass(frozen=True)
class Need:
    """The trials and time that the undecided cells of a gate still need, if their means and variances stay the same.

    - `cells`, `undecided`: the numbers of all cells and of undecided ones.
    - `decidable`: the number of undecided cells that more trials would decide. The others vary too much, or lie too
      close to the threshold.
    - `more_trials`: the largest number of further trials per side that any of the decidable cells needs.
    - `seconds`: the time of the further trials of all decidable cells.
    - `trials`: the total trials per side after which the slowest cell would be decided.
    - `planned_trials`: the trials per side at the last look of the gate.
    - `round_s`, `undecided_round_s`: the time of one trial per side of all cells, and of the decidable ones."""

    cells: int
    undecided: int
    decidable: int
    more_trials: int
    seconds: float
    trials: int
    planned_trials: int
    round_s: float
    undecided_round_s: float

    @property
    def says(self) -> str:
        """The need in words."""
        all_of_them = "it" if self.undecided == 1 else "them"
        cells_decided = all_of_them if self.decidable == self.undecided else f"{self.decidable} of them"
        words = f"{self.undecided} of {counted(self.cells, 'cell')} undecided"
        if self.decidable:
            more = f"{counted(self.more_trials, 'more trial')} a side ({duration(self.seconds)})"
            words += f"; about {more} would decide {cells_decided}"
            if self.trials > self.planned_trials:
                words += f", but the last look is after {self.planned_trials} trials"
        elif self.undecided:
            words += ": too noisy or too close to the threshold for any number of trials"
        return words


def need_of(state: Gate, content: GateFile, base: Sequence[Record], current: Sequence[Record]) -> Need:
    """Return the need of a gate in this state, by the first metric. `base` and `current` are all records so far."""
    verdicts = state.verdicts(content.question.cells)
    compared = gate.comparison(verdicts, content.question.cells, base, current, state.interims[-1])
    metric, sides = content.question.metrics[0], (base, current)
    durations_s = {
        cell.key: [[r.duration_s for r in records if r.cell.key == cell.key and r.status == "ok"] for records in sides]
        for cell in content.question.cells
    }
    rounds_s = {key: sum(map(statistics.median, times)) for key, times in durations_s.items() if all(times)}
    gave_up = {
        cell.key for cell, cell_state in zip(content.question.cells, state.cells, strict=True) if cell_state.gave_up
    }
    undecided = [
        cell
        for cell in compared.cells
        if cell.metric.name == metric and cell.verdict == "inconclusive" and cell.cell.key not in gave_up
    ]
    more = {
        cell.cell.key: cell.more_trials
        for cell in undecided
        if cell.more_trials is not None and cell.cell.key in rounds_s
    }
    return Need(
        cells=len(content.question.cells),
        undecided=len(undecided),
        decidable=len(more),
        more_trials=max(more.values(), default=0),
        seconds=sum(trials * rounds_s[key] for key, trials in more.items()),
        trials=max((trials + min(map(len, durations_s[key])) for key, trials in more.items()), default=0),
        planned_trials=content.question.trials[-1],
        round_s=sum(rounds_s.values()),
        undecided_round_s=sum(rounds_s[key] for key in more),
    )


def next_step(need: Need, content: GateFile) -> NextStep | None:
    """Return the command that continues an ended gate, None if nothing is undecided or no command would help.

    A gate that ran out of its budget has looks left and continues. After the last look, another look at the same trials
    would add to the probability of a wrong verdict, so a new gate with more trials is suggested."""
    if content.spent is True:
        return NextStep(tuple(words_again(resume=True)), "continues this gate")
    first = max(2, -(-need.trials // 2))
    seconds = first * need.round_s + (need.trials - first) * need.undecided_round_s
    if not need.more_trials or seconds > _MOST_SUGGESTED_S:
        return None
    words = _without_options(words_again(resume=False), ("--looks", "--budget"))
    purpose = f"a new gate with more trials: about {duration(seconds)}"
    return NextStep((*words, "--looks", f"{first},{max(first + 1, need.trials)}"), purpose)


def _without_options(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words of a command line without these options and their arguments."""
    remaining, skip = [], False
    for word in words:
        if not skip and word not in options and not word.startswith(tuple(f"{option}=" for option in options)):
            remaining.append(word)
        skip = word in options and not skip
    return remaining
