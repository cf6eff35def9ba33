"""Two builds measured in turns: runs the trials that a gate asks for and stores each one as it ends.

On the host the two trials of a round run at the same time and alternate every three steps. On two cores of a shared
machine, consecutive trials differed by 7 to 14%; alternating trials differed by 2 to 4%. The two run one after the
other on a GPU (both would need its memory), with many ranks, and against a revision that cannot take turns.

To compare two revisions: prepare them (`builds`), start a gate (`gate.start`) and call `measure`."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from tcbench.commands.gate.builds import Build
from tcbench.core.messages import Message
from tcbench.core.record import DEFAULT_BACKEND, Cell, Record
from tcbench.core.store import Store
from tcbench.core.text import plain
from tcbench.engine.api import kind_of
from tcbench.run.devices import runs_on_host
from tcbench.run.gate import BASE, CURRENT, Gate, GateVerdict, Role, Trial, replay
from tcbench.run.launcher import Launcher
from tcbench.run.plan import Plan, PlannedCell
from tcbench.run.runner import COOLING_S, Runner


class GateProgress(Protocol):
    """A display of a gate's trials as they run."""

    def begin(self, label: str, remaining: Sequence[Cell], ahead: int) -> None:
        """Show that a trial begins.

        `remaining` has the cell of this trial and of each trial that is certain to follow, without skipped ones.
        `ahead` is the number of all these trials, with skipped ones."""
        ...

    def listen(self, cell: Cell, trial: int, message: Message) -> None: ...

    def finished(self, record: Record) -> None: ...


@dataclass(frozen=True)
class EndedGate:
    """The result of a gate: its state, the records of both sides, and whether the budget ended it."""

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
    earlier: Mapping[Role, Sequence[Record]] | None = None,
    decided: Sequence[GateVerdict] = (),
    after_look: Callable[[EndedGate], None] = lambda _: None,
) -> EndedGate:
    """Run the trials that the gate asks for until every cell is done or trials have taken `budget_s`.

    Each record is stored before the next trial begins. `state` is the gate before its first trial; `earlier` has the
    records that the stores already hold from a gate that did not end, and `decided` its verdicts if its budget ended
    it. `after_look` is called after each look but the last with the gate so far."""
    options: dict[str, Any] = {"timeout_s": plan.timeout_s, "listen": progress.listen, "launcher": launcher}
    options |= {"cooling_s": COOLING_S, "step_counts": {}}
    runners = {
        build.name: Runner(stores[build.name].path.stem, launch=build.launch_as_side(), **options) for build in ready
    }
    records_of: dict[Role, list[Record]] = {side: list((earlier or {}).get(side, ())) for side in (BASE, CURRENT)}
    state = replay(state, [planned.cell for planned in plan.cells], records_of)
    state = state.with_verdicts(decided) if decided else state
    spent_s = sum(record.duration_s for side_records in records_of.values() for record in side_records)
    started, spent = time.monotonic() - spent_s, False
    alone: set[int] = set()  # cells whose two trials failed when they ran at the same time
    timed: set[int] = set()  # cells whose candidate kernels both sides have timed
    while (ahead := state.certain()) and not spent:
        cell = ahead[0].cell
        planned = plan.cells[cell]
        in_turns = cell not in alone and state.cells[cell].even and can_take_turns(planned, ready)
        trials = ahead[: 2 if in_turns else 1]
        _begin(progress, state, plan, trials, cell in alone)
        if cell not in timed and _chooses_kernels(planned):
            timed.add(cell)
            time_candidates(list(runners.values()), planned)
        looks_before = state.looks_taken
        records: dict[int, Record] = {}
        for index, record in run_trials(
            [runners[trial.side] for trial in trials], planned, [trial.number for trial in trials]
        ):
            if index in records:  # the GPU was slowed down, and the trial was repeated
                stores[trials[index].side].append(records[index])
            records[index] = record
        if in_turns and not all_ok(records.values()):
            alone.add(cell)
            continue
        for trial, record in ((trials[index], record) for index, record in records.items()):
            _begin(progress, state, plan, [trial], cell in alone)
            stores[trial.side].append(record)
            records_of[trial.side].append(record)
            progress.finished(record)
            state = state.with_record(trial, record)
        spent = budget_s is not None and time.monotonic() - started >= budget_s
        if state.looks_taken > looks_before and state.certain() and not spent:
            after_look(EndedGate(state, tuple(records_of[BASE]), tuple(records_of[CURRENT]), spent))
    unfinished = bool(state.certain())
    return EndedGate(
        state.ended() if unfinished else state, tuple(records_of[BASE]), tuple(records_of[CURRENT]), unfinished
    )


def run_trials(runners: Sequence[Runner], planned: PlannedCell, numbers: Sequence[int]) -> Iterator[tuple[int, Record]]:
    """Run one trial, or one trial on each of two runners in turns. Yields (position in `runners`, record); the record
    of a crash quotes the last line of the worker's log."""
    first, *rest = runners
    if rest:
        records = first.in_turns(rest[0], planned, (numbers[0], numbers[1]))
    else:
        records = ((0, record) for record in first.run([(planned, numbers[0])]))
    return ((place, _with_last_line(record)) for place, record in records)


def time_candidates(runners: Iterable[Runner], planned: PlannedCell) -> None:
    """Let each side time its candidate kernels for the cell, in minimal trials that do not count. From their first real
    trial on, both sides then choose kernels by the same times."""
    measure = msgspec.structs.replace(
        planned.cell.measure, max_time_s=1e-3, min_warmup_steps=1, max_warmup_steps=1, min_timed_steps=1
    )
    shortest = replace(planned, cell=msgspec.structs.replace(planned.cell, measure=measure))
    for runner in runners:
        for _ in runner.run([(shortest, 0)]):
            pass


def _chooses_kernels(planned: PlannedCell) -> bool:
    """Return whether the cell chooses among candidate kernels by measured time."""
    cell = planned.cell
    if planned.skip_reason is not None or cell.backend != DEFAULT_BACKEND or kind_of(cell.device).simulates:
        return False
    return runs_on_host(cell) or cell.cudnn.autotune


def all_ok(records: Iterable[Record]) -> bool:
    """Return whether both of two trials that ran in turns succeeded.

    If one failed, the other may be the cause (memory, a port, a file). Then neither counts, and both are run again, one
    after the other."""
    return all(record.status == "ok" for record in records)


def can_take_turns(planned: PlannedCell, builds: Sequence[Build]) -> bool:
    """Return whether these builds can run trials of the cell at the same time, alternating step by step."""
    runs = planned.skip_reason is None and runs_on_host(planned.cell)
    return runs and all(build.launch.takes_turns for build in builds)


def with_gate_timing(plan: Plan, longer: bool) -> Plan:
    """Return the plan with short turns on the host and, if `longer`, the scenario's `gate_max_time_s` as time limit."""
    max_time_s, cells = plan.scenario.measure.gate_max_time_s if longer else None, []
    for planned in plan.cells:
        measure = planned.cell.measure
        if max_time_s is not None:
            measure = msgspec.structs.replace(measure, max_time_s=max_time_s)
        if runs_on_host(planned.cell):
            measure = msgspec.structs.replace(measure, block_steps=min(TURN_STEPS, measure.block_steps))
        cells.append(replace(planned, cell=msgspec.structs.replace(planned.cell, measure=measure)))
    return replace(plan, cells=tuple(cells))


TURN_STEPS = 3
"""Steps per turn; the first step of a turn is not counted.

Short turns cancel more of the machine's noise: on a shared machine the ratio of two trials varied by 3.2% with six
steps and by 2.0% with two."""


def _begin(progress: GateProgress, state: Gate, plan: Plan, trials: Sequence[Trial], alone: bool) -> None:
    """Show that trials begin, and which cells remain. `alone`: the two trials of a round do not run at once."""
    certain = [plan.cells[ahead.cell] for ahead in state.certain()]
    to_run = [planned.cell for planned in certain if planned.skip_reason is None]
    sides = " and ".join(trial.side for trial in trials) + " alone" * alone
    label = f"{sides}, look {trials[0].interim + 1}/{len(state.interims)}"
    progress.begin(label, to_run, ahead=len(certain))


def _with_last_line(record: Record) -> Record:
    """Return a record. If it is of a crash with an exit code, append the last line of the worker's log to its reason.

    A worker of another version may end before it can report an error, for example because it does not know the
    request."""
    reason = record.reason or ""
    if record.status != "crashed" or "exit code" not in reason or not record.log:
        return record
    return msgspec.structs.replace(record, reason=f"{reason}: {plain(record.log.splitlines()[-1])}")
