"""A gate's question and decisions, stored beside its records as `gate-...-verdicts.json`.

The file is written before the first trial, so that an interrupted gate can be resumed, and again with the verdicts.
Every command that compares the records shows these verdicts: a gate judges look by look, and a comparison of all trials
at once may differ in a cell or two."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from tcbench.analysis import verdict
from tcbench.analysis.compare import METRICS, CellComparison, Comparison, Side
from tcbench.analysis.machine_check import MachineCheck
from tcbench.analysis.verdict import Decision, Interim, Rule
from tcbench.core import files, store
from tcbench.core.errors import StoreError
from tcbench.core.record import Cell, Record
from tcbench.core.text import decode
from tcbench.run import gate
from tcbench.run.gate import BASE, CURRENT, Gate, GateVerdict, Role

_SIDE = re.compile(r"(gate-\d{8}-\d{6}(?:-\d+)?)-(base|current)")
_ENDING = "-verdicts.json"


class GateQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The question of a gate. `base` and `current` identify the code: a commit with the digest of its local changes, or
    an interpreter's path. Gates with equal questions measure the same."""

    base: str
    current: str
    scenario: str
    cells: tuple[Cell, ...]
    metrics: tuple[str, ...]
    threshold: float
    trials: tuple[int, ...]

    @property
    def rule(self) -> Rule:
        return Rule(self.threshold)

    @property
    def interims(self) -> tuple[Interim, ...]:
        return verdict.interims(self.trials, self.rule)

    def differs(self, other: GateQuestion) -> str | None:
        """Return the name of the first field that differs between the two questions, or None."""
        names = (field for field in self.__struct_fields__ if getattr(self, field) != getattr(other, field))
        return next(names, None)


class GateFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a gate's file. `names` are the names of base and current for display. `gone` are the cells that
    only base's scenario has. `verdicts` are first those on the cells in the question, then those on the cells in
    `gone`; they are empty until the gate has ended. `machine_check`: unset before it ends, and by earlier versions.
    `spent`: True if the budget ended the gate before its last look, else unset.

    Versions of `schema_version`: in 1, the decisions were stored apart from the verdicts, under `judged`; in 2, each
    verdict holds its number of trials."""

    schema: Literal["tcbench-gate"] = "tcbench-gate"
    schema_version: Literal[1, 2] = 2
    question: GateQuestion = msgspec.field(name="asked")
    names: tuple[str, str]
    gone: tuple[Cell, ...] = ()
    notes: tuple[str, ...] = ()
    verdicts: tuple[GateVerdict, ...] = ()
    machine_check: MachineCheck | msgspec.UnsetType = msgspec.UNSET
    spent: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def finished(self) -> bool:
        """Whether the gate has ended."""
        return bool(self.verdicts)


class _CellDecisions(msgspec.Struct, frozen=True):
    """A cell in a file of version 1. For each metric, `decisions` holds the decision and its number of trials per side,
    or None. `interims` is the number of looks taken."""

    decisions: tuple[tuple[Decision, int] | None, ...]
    interims: int


class _FirstForm(msgspec.Struct, frozen=True):
    """The fields that only a file of version 1 has."""

    judged: tuple[_CellDecisions, ...] = ()


def verdicts_path(records: Path) -> Path | None:
    """Return the path of the gate's file for one side's records, existing or not. None for records of no gate."""
    match = _SIDE.fullmatch(records.stem)
    return records.with_name(match[1] + _ENDING) if match else None


def record_files(path: Path) -> dict[Role, Path]:
    """Return the paths of both sides' records, for a gate's file."""
    name = path.name.removesuffix(_ENDING)
    return {side: path.with_name(f"{name}-{side}{store.SUFFIX}") for side in (BASE, CURRENT)}


def stored_trials(path: Path) -> dict[Role, tuple[Record, ...]]:
    """Return the records of both sides of a gate, given the path of the gate's file: the last record of each trial. A
    side without a file has none. Raises StoreError."""
    files = record_files(path).items()
    return {side: store.newest(store.read([file]).records) if file.exists() else () for side, file in files}


def finished_sides(current: Path) -> dict[Role, Path] | None:
    """Return the paths of both sides' records, if `current` is the current side of a finished gate, else None."""
    path = verdicts_path(current)
    sides = record_files(path) if path is not None and path.is_file() else None
    return sides if sides and sides[CURRENT].name == current.name and read_finished(sides[BASE], current) else None


def write(path: Path, content: GateFile) -> None:
    """Write the file, completely or not at all. Raises StoreError."""
    files.write(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def read(path: Path) -> GateFile:
    """Return the content of a gate's file. Raises StoreError if it cannot be read or is not a gate's file."""
    try:
        encoded = files.read(path)
        content: GateFile = decode(encoded, GateFile)
        return _with_trials(content, decode(encoded, _FirstForm)) if content.schema_version == 1 else content
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: expected the verdicts of a gate (tcbench-gate 2): {error}") from None


def _with_trials(content: GateFile, first: _FirstForm) -> GateFile:
    """Return the content of a file of version 1 with the number of trials in each verdict."""
    n, looks = len(content.question.metrics), (None, *content.question.trials)
    verdicts: list[GateVerdict] = []
    for place, cell in enumerate(first.judged):
        cell_verdicts = content.verdicts[n * place : n * (place + 1)]
        trials = None if any(verdict.gave_up for verdict in cell_verdicts) else looks[cell.interims]
        verdicts += [
            msgspec.structs.replace(verdict, trials=decided[1] if decided else trials)
            for verdict, decided in zip(cell_verdicts, cell.decisions, strict=False)
        ]
    return msgspec.structs.replace(content, verdicts=(*verdicts, *content.verdicts[len(verdicts) :]))


def read_finished(base: Path, current: Path) -> GateFile | None:
    """Return the content of a gate's file if `base` and `current` are the files of records of a finished gate, else
    None. Raises StoreError if the gate's file cannot be read."""
    path = verdicts_path(current)
    if path is None or not path.is_file():
        return None
    sides = record_files(path)
    if not (base.exists() and sides[BASE].exists() and base.samefile(sides[BASE]) and current.samefile(sides[CURRENT])):
        return None
    content = read(path)
    return content if content.finished else None


def unfinished(folder: Path, question: GateQuestion) -> Path | None:
    """Return the newest gate's file in a machine's folder that has no verdicts yet, or None. A gate with this question
    that its budget ended also counts as unfinished, unless a newer one with this question has ended otherwise."""
    newest_first = sorted(folder.glob(f"gate-*{_ENDING}"), reverse=True) if folder.is_dir() else []
    answered = False
    for path in newest_first:
        content = read(path)
        is_same = content.question == question
        if not content.finished or (is_same and content.spent is True and not answered):
            return path
        answered = answered or is_same
    return None


def judged(content: GateFile, state: Gate, spent: str | None = None) -> GateFile:
    """Return the content with the verdicts of a gate that has ended in this state. `spent` is a note about the budget
    if it ended the gate, else None."""
    ended = "the budget was spent" if spent else "the gate ended"
    notes = (spent, *content.notes) if spent else content.notes
    verdicts = state.verdicts(content.question.cells, ended)
    check, was_spent = state.machine_check, True if spent else msgspec.UNSET
    return msgspec.structs.replace(content, verdicts=verdicts, notes=notes, machine_check=check, spent=was_spent)


def shown(content: GateFile, compared: Sequence[CellComparison]) -> GateFile:
    """Return the content with the verdicts of the comparison that users see, which take failed trials and the `gone`
    cells into account. `compared` holds a comparison per cell and metric, in the order of `content.verdicts`."""
    trials = itertools.chain((verdict.trials for verdict in content.verdicts), itertools.repeat(None))
    verdicts = (
        GateVerdict(
            cell.cell.label,
            *(cell.metric.name, cell.verdict, cell.failing, cell.why, n, cell.by_figures or msgspec.UNSET),
        )
        for cell, n in zip(compared, trials, strict=False)
    )
    return msgspec.structs.replace(content, verdicts=tuple(verdicts))


def comparison(content: GateFile, base: Sequence[Record], current: Sequence[Record]) -> Comparison:
    """Return the comparison of both sides' records with the gate's verdicts."""
    question = content.question
    compared = gate.comparison(content.verdicts, question.cells, base, current, question.interims[-1])
    gone = (Side(cell, None, "skipped", "only in base's scenario; not run", 0, 0) for cell in content.gone)
    missing = (
        CellComparison(METRICS[name], side, None, "missing", failing=True)
        for side, name in itertools.product(gone, question.metrics)
    )
    notes = (*compared.notes, *content.notes, gate.summary(shown(content, compared.cells).verdicts))
    compared = replace(compared, cells=(*compared.cells, *missing), notes=tuple(filter(None, notes)))
    return compared.with_machine_check(content.machine_check) if content.machine_check else compared
