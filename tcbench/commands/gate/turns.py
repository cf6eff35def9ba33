"""Two builds measured in turns: the trials that a gate asks for, each kept as it ends, until it asks for no more.

On the host the two trials of a round are there at once and step in turns, three steps each: on two cores of a shared
machine, trials one after another differed by 7 to 14%, and those that stepped in turns by 2 to 4%. On a GPU, where
both would hold its memory, with many ranks, and beside a revision that cannot, they run one after another.

Whoever wants two revisions beside each other makes them ready (`builds`), begins a gate (`gate.start`) and calls
`measure`.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from tcbench.commands.gate.builds import Build
from tcbench.core.messages import Message
from tcbench.core.record import Cell, Record
from tcbench.core.store import Store
from tcbench.core.text import plain
from tcbench.engine import backends
from tcbench.engine.accelerators.device import is_on_host, kind_of
from tcbench.run.gate import BASE, CURRENT, Gate, Role, Trial, replay
from tcbench.run.launcher import Launcher
from tcbench.run.plan import Plan, PlannedCell
from tcbench.run.runner import COOLING_S, Runner


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
    shared["cooling_s"] = COOLING_S
    runners = {side.name: Runner(stores[side.name].path.stem, launch=side.launch_as_side(), **shared) for side in ready}
    kept: dict[Role, list[Record]] = {side: list((before or {}).get(side, ())) for side in (BASE, CURRENT)}
    state = replay(state, [planned.cell for planned in plan.cells], kept)
    spent_s = sum(record.duration_s for of_side in kept.values() for record in of_side)
    started, spent = time.monotonic() - spent_s, False
    alone: set[int] = set()  # cells of which two at once do not run
    timed: set[int] = set()  # cells whose candidates both sides have timed
    while (ahead := state.certain()) and not spent:
        planned, here = plan.cells[ahead[0].cell], ahead[0].cell
        turns = here not in alone and state.cells[here].even and can_take_turns(planned, ready)
        trials = ahead[: 2 if turns else 1]
        _begin(progress, state, plan, trials, here in alone)
        if here not in timed and _chooses_kernels(planned):
            timed.add(here)
            time_candidates(list(runners.values()), planned)
        records: dict[int, Record] = {}
        for place, record in run(
            [runners[trial.side] for trial in trials], planned, [trial.number for trial in trials]
        ):
            if place in records:  # the GPU was slowed down, and the trial was repeated
                stores[trials[place].side].append(records[place])
            records[place] = record
        if turns and not all_ok(records.values()):
            alone.add(here)
            continue
        for trial, record in ((trials[place], record) for place, record in records.items()):
            _begin(progress, state, plan, [trial], here in alone)
            stores[trial.side].append(record)
            kept[trial.side].append(record)
            progress.finished(record)
            state = state.after(trial, record)
        spent = budget_s is not None and time.monotonic() - started >= budget_s
    unfinished = bool(state.certain())
    return EndedGate(state.ended() if unfinished else state, tuple(kept[BASE]), tuple(kept[CURRENT]), unfinished)


def run(runners: Sequence[Runner], planned: PlannedCell, numbers: Sequence[int]) -> Iterator[tuple[int, Record]]:
    """A trial of one runner, or one each of two in turns, of these numbers: their places and records, as they end."""
    first, *others = runners
    if others:
        records = first.in_turns(others[0], planned, (numbers[0], numbers[1]))
    else:
        records = ((0, record) for record in first.run([(planned, numbers[0])]))
    return ((place, _explained(record)) for place, record in records)


def time_candidates(runners: Iterable[Runner], planned: PlannedCell) -> None:
    """Let each side time its candidates for the cell's work, in a trial as short as it can be that counts for nothing:
    then both sides choose by the times of both from their first trial on."""
    measure = msgspec.structs.replace(
        planned.cell.measure, max_time_s=1e-3, min_warmup_steps=1, max_warmup_steps=1, min_timed_steps=1
    )
    shortest = replace(planned, cell=msgspec.structs.replace(planned.cell, measure=measure))
    for runner in runners:
        for _ in runner.run([(shortest, 0)]):
            pass


def _chooses_kernels(planned: PlannedCell) -> bool:
    """Whether the cell's work is done by the fastest of several candidates."""
    cell = planned.cell
    times = (is_on_host(cell) or cell.cudnn.autotune) and kind_of(cell.device).simulates is None
    return planned.skip_reason is None and cell.backend == backends.DEFAULT and times


def all_ok(records: Iterable[Record]) -> bool:
    """Whether two trials that stepped in turns say anything. What ends one of them may be the other's doing, which held
    the memory, a port, a file or the turn: then neither counts, and both are run again, alone."""
    return all(record.status == "ok" for record in records)


def can_take_turns(planned: PlannedCell, builds: Sequence[Build]) -> bool:
    """Whether trials of the cell by these builds can be there at once and step in turns."""
    runs = planned.skip_reason is None and is_on_host(planned.cell)
    return runs and all(build.launch.takes_turns for build in builds)


def of_gate(plan: Plan, longer: bool = True) -> Plan:
    """The plan with its cells' timed passes as in a gate: of short turns on the host, and where that is wished as long
    as the scenario has them there."""
    longer_s, cells = plan.scenario.measure.gate_max_time_s if longer else None, []
    for planned in plan.cells:
        measure = planned.cell.measure
        if longer_s is not None:
            measure = msgspec.structs.replace(measure, max_time_s=longer_s)
        if is_on_host(planned.cell):
            measure = msgspec.structs.replace(measure, block_steps=min(TURN_STEPS, measure.block_steps))
        cells.append(replace(planned, cell=msgspec.structs.replace(planned.cell, measure=measure)))
    return replace(plan, cells=tuple(cells))


TURN_STEPS = 3
"""Steps of a turn, of which the first is not counted. What neighbours in time have in common cancels the better the
shorter turns are: on a shared machine the ratio of two trials varied by 3.2% with six, by 2.0% with two."""


def _begin(progress: GateProgress, state: Gate, plan: Plan, trials: Sequence[Trial], alone: bool) -> None:
    certain = [plan.cells[ahead.cell] for ahead in state.certain()]
    to_run = [planned.cell for planned in certain if planned.skip_reason is None]
    sides = " and ".join(trial.side for trial in trials) + " alone" * alone
    label = f"{sides}, look {trials[0].interim + 1}/{len(state.interims)}"
    progress.begin(label, to_run, len(certain))


def _explained(record: Record) -> Record:
    """The record with the error of a worker that ended before it could report one, as another version may that does not
    know its request: the last line of its output."""
    reason = record.reason or ""
    if record.status != "crashed" or "exit code" not in reason or not record.log:
        return record
    return msgspec.structs.replace(record, reason=f"{reason}: {plain(record.log.splitlines()[-1])}")
