"""Two builds measured in turns: the trials that a gate asks for, each kept as it ends, until it asks for no more.

Whoever wants two revisions beside each other makes them ready (`tcbench.run.builds`), begins a gate (`gate.start`) and
calls `measure`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from tcbench.core.messages import Message
from tcbench.core.record import Cell, Record
from tcbench.core.store import Store
from tcbench.core.text import plain
from tcbench.run.builds import Build
from tcbench.run.gate import BASE, CURRENT, Gate, Role, replay
from tcbench.run.launcher import Launcher
from tcbench.run.plan import Plan
from tcbench.run.runner import Runner


class GateProgress(Protocol):
    """The display of the trials as they go."""

    def begin(self, label: str, remaining: Sequence[Cell], ahead: int) -> None:
        """A trial begins; `remaining` are the cells of it and of those that will follow whatever it says, `ahead` is
        the number of these trials, with those that are skipped."""
        ...

    def listen(self, cell: Cell, trial: int, message: Message) -> None: ...

    def finished(self, record: Record) -> None: ...


@dataclass(frozen=True)
class EndedGate:
    """A gate at its end: its state, all records of both sides, and whether the budget ended it."""

    state: Gate
    base: tuple[Record, ...]
    current: tuple[Record, ...]
    spent: bool


def measure(
    state: Gate,
    plan: Plan,
    ready: tuple[Build, Build],
    launcher: Launcher,
    stores: Mapping[Role, Store],
    progress: GateProgress,
    budget_s: float | None = None,
    before: Mapping[Role, Sequence[Record]] | None = None,
) -> EndedGate:
    """Run the trials that the gate asks for, of the plan's cells in their order, until every cell is over or trials
    have taken `budget_s`. Each record is in its side's store before the next trial begins. `before`: what the stores
    hold already, of a gate that was interrupted; `state` is the gate before its first trial."""
    shared: dict[str, Any] = {"timeout_s": plan.timeout_s, "listen": progress.listen, "launcher": launcher}
    runners = {side.name: Runner(stores[side.name].path.stem, launch=side.launch, **shared) for side in ready}
    kept: dict[Role, list[Record]] = {side: list((before or {}).get(side, ())) for side in (BASE, CURRENT)}
    state = replay(state, [planned.cell for planned in plan.cells], kept)
    spent_s = sum(record.duration_s for of_side in kept.values() for record in of_side)
    started, spent = time.monotonic() - spent_s, False
    while (trial := state.next_trial()) and not spent:
        certain = [plan.cells[one.cell] for one in state.certain()]
        to_run = [planned.cell for planned in certain if planned.skip_reason is None]
        label = f"{trial.side}, look {trial.interim + 1}/{len(state.interims)}"
        progress.begin(label, to_run, len(certain))
        for record in map(explained, runners[trial.side].run([(plan.cells[trial.cell], trial.number)])):
            stores[trial.side].append(record)
            kept[trial.side].append(record)
            progress.finished(record)
            state = state.after(trial, record)
        spent = budget_s is not None and time.monotonic() - started >= budget_s
    unfinished = state.next_trial() is not None
    return EndedGate(state.ended() if unfinished else state, tuple(kept[BASE]), tuple(kept[CURRENT]), unfinished)


def explained(record: Record) -> Record:
    """The record with the error of a worker that ended before it could report one, as another version may that does not
    know its request: the last line of its output."""
    reason = record.reason or ""
    if record.status != "crashed" or "exit code" not in reason or not record.log:
        return record
    return msgspec.structs.replace(record, reason=f"{reason}: {plain(record.log.splitlines()[-1])}")
