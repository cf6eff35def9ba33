"""The time that an undecided gate still needs, and the command that goes on."""

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
"""A gate that would need longer than this is not suggested."""


@dataclass(frozen=True)
class Outlook:
    """What the undecided cells of a gate still need, if their means and variances stay the same.

    - `cells`, `undecided`: the numbers of all cells and of undecided ones.
    - `near`: undecided cells that lie too near the threshold, or vary too much, for any number of trials.
    - `more_trials`, `seconds`: for the other undecided cells, the trials a side of the cell that needs the most, and
      the time of the trials of all of them. Both are 0 if there is no such cell.
    - `trials`: the trials a side that the cell that needs the most then has.
    - `planned_trials`: the trials a side at the last look of the gate."""

    cells: int
    undecided: int
    near: int
    more_trials: int
    seconds: float
    trials: int
    planned_trials: int

    @property
    def says(self) -> str:
        """The outlook in words."""
        needs = f"{counted(self.undecided, 'undecided cell')} of {self.cells}"
        if self.more_trials:
            needs += f": about {counted(self.more_trials, 'more trial')} a side, {duration(self.seconds)}"
        if self.near:
            needs += f"; for {'it' if self.near == self.undecided else self.near} no number of trials would decide"
        return needs


def outlook(state: Gate, content: GateFile, base: Sequence[Record], current: Sequence[Record]) -> Outlook:
    """Return the outlook of a gate in this state, by the first metric. `base` and `current` are all records so far."""
    verdicts = state.verdicts(content.question.cells)
    compared = gate.comparison(verdicts, content.question.cells, base, current, state.interims[-1])
    metric = content.question.metrics[0]
    undecided = [cell for cell in compared.cells if cell.metric.name == metric and cell.verdict == "inconclusive"]
    needs: list[tuple[int, float, int]] = []
    for cell in undecided:
        durations_s = [
            [record.duration_s for record in records if record.cell.key == cell.cell.key and record.status == "ok"]
            for records in (base, current)
        ]
        if cell.more_trials is not None and all(durations_s):
            round_s = sum(map(statistics.median, durations_s))
            needs.append((cell.more_trials, cell.more_trials * round_s, cell.more_trials + min(map(len, durations_s))))
    return Outlook(
        cells=len(content.question.cells),
        undecided=len(undecided),
        near=sum(cell.more_trials is None and cell.ratio is not None for cell in undecided),
        more_trials=max((more for more, _, _ in needs), default=0),
        seconds=sum(seconds for _, seconds, _ in needs),
        trials=max((trials for _, _, trials in needs), default=0),
        planned_trials=content.question.trials[-1],
    )


def next_step(ahead: Outlook, content: GateFile) -> NextStep | None:
    """Return the command that goes on with an ended gate, None if nothing is undecided or no command would help.

    A gate that ran out of its budget has looks left and continues. After the last look, another look at the same trials
    would add to the probability of a wrong verdict, so a new gate with more trials is suggested."""
    if content.spent:
        return NextStep(tuple(words_again(resume=True)), "continues this gate")
    if not ahead.more_trials or ahead.seconds > _MOST_SUGGESTED_S:
        return None
    words = _without_option(words_again(resume=False), "--looks")
    looks = f"{-(-ahead.trials // 2)},{ahead.trials}"
    round_s = ahead.seconds / ahead.more_trials
    purpose = f"a new gate with more trials: up to {duration(ahead.trials * round_s)}"
    return NextStep((*words, "--looks", looks), purpose)


def _without_option(words: Sequence[str], option: str) -> list[str]:
    """Return the words of a command line without an option and its argument."""
    kept, skip = [], False
    for word in words:
        if skip or word == option or word.startswith(f"{option}="):
            skip = word == option and not skip
            continue
        kept.append(word)
    return kept
