"""The question and the decisions of a gate, in a file beside its records: `gate-...-verdicts.json`.

It is written before the first trial, so that a gate that was ended by whatever can be gone on with, and again with the
verdicts. Whoever compares the records shows these: a gate judges look by look, and a comparison of all trials at once
may say something else in a cell or two.
"""

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
    """The question of a gate. `base` and `current` name the code: a commit, with the digest of what differs from
    it, or an interpreter's path. Two gates that were asked the same measure the same."""

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
        """The first thing that the two are not alike in."""
        names = (field for field in self.__struct_fields__ if getattr(self, field) != getattr(other, field))
        return next(names, None)


class GateFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file. `names` are the two sides' for people. `verdicts` are those of the cells that were asked, then of
    those that are `gone`, which only base's scenario has; they are empty until the gate has ended. History of
    `schema_version`: 1, decisions lay apart from the verdicts, under `judged`; 2, a verdict tells its trials."""

    schema: Literal["tcbench-gate"] = "tcbench-gate"
    schema_version: Literal[1, 2] = 2
    asked: GateQuestion
    names: tuple[str, str]
    gone: tuple[Cell, ...] = ()
    notes: tuple[str, ...] = ()
    verdicts: tuple[GateVerdict, ...] = ()

    @property
    def finished(self) -> bool:
        return bool(self.verdicts)


class _CellDecisions(msgspec.Struct, frozen=True):
    """A cell of a file of version 1: for each metric the decision and its trials a side, and the looks taken."""

    decisions: tuple[tuple[Decision, int] | None, ...]
    interims: int


class _FirstForm(msgspec.Struct, frozen=True):
    judged: tuple[_CellDecisions, ...] = ()


def beside(records: Path) -> Path | None:
    """The file beside a side's records, there or not; None for records that are no gate's."""
    match = _SIDE.fullmatch(records.stem)
    return records.with_name(match[1] + _ENDING) if match else None


def record_files(path: Path) -> dict[Role, Path]:
    """The records of both sides, beside the file."""
    name = path.name.removesuffix(_ENDING)
    return {side: path.with_name(f"{name}-{side}{store.SUFFIX}") for side in (BASE, CURRENT)}


def stored_trials(path: Path) -> dict[Role, tuple[Record, ...]]:
    """Return the records of both sides, one per trial: the last of a trial that was repeated. Raises StoreError."""
    files = record_files(path).items()
    return {side: store.newest(store.read([file]).records) if file.exists() else () for side, file in files}


def both_of(current: Path) -> dict[Role, Path] | None:
    """Both sides of the gate that has ended with these records of current; None where they are no such."""
    path = beside(current)
    there = record_files(path) if path is not None and path.is_file() else None
    return there if there and there[CURRENT].name == current.name and of(there[BASE], current) else None


def write(path: Path, content: GateFile) -> None:
    """Put it in place, whole or not at all. Raises StoreError."""
    files.write(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def read(path: Path) -> GateFile:
    """Return what a gate's file holds. Raises StoreError for a file that is none."""
    try:
        encoded = files.read(path)
        content: GateFile = decode(encoded, GateFile)
        return _with_trials(content, decode(encoded, _FirstForm)) if content.schema_version == 1 else content
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: expected the verdicts of a gate (tcbench-gate 2): {error}") from None


def _with_trials(content: GateFile, first: _FirstForm) -> GateFile:
    """Return a file of version 1 whose verdicts tell the trials that they rest on."""
    n, looks = len(content.asked.metrics), (None, *content.asked.trials)
    verdicts: list[GateVerdict] = []
    for place, cell in enumerate(first.judged):
        of_cell = content.verdicts[n * place : n * (place + 1)]
        seen = None if any(verdict.gave_up for verdict in of_cell) else looks[cell.interims]
        verdicts += [
            msgspec.structs.replace(verdict, trials=decided[1] if decided else seen)
            for verdict, decided in zip(of_cell, cell.decisions, strict=False)
        ]
    return msgspec.structs.replace(content, verdicts=(*verdicts, *content.verdicts[len(verdicts) :]))


def of(base: Path, current: Path) -> GateFile | None:
    """The file of the gate whose two sides these are; None where they are not, or where it holds no verdicts."""
    path = beside(current)
    if path is None or not path.is_file():
        return None
    named = record_files(path)
    if not (base.exists() and named[BASE].exists() and base.samefile(named[BASE]) and current.samefile(named[CURRENT])):
        return None
    content = read(path)
    return content if content.finished else None


def unfinished(folder: Path) -> Path | None:
    """The newest gate in a machine's folder that has no verdicts yet."""
    newest_first = sorted(folder.glob(f"gate-*{_ENDING}"), reverse=True) if folder.is_dir() else []
    return next((path for path in newest_first if not read(path).finished), None)


def judged(content: GateFile, state: Gate, spent: str | None = None) -> GateFile:
    """Return the file with the verdicts of a gate that has ended; `spent` says so where its budget ended it."""
    ended = "the budget was spent" if spent else "the gate ended"
    notes = (spent, *content.notes) if spent else content.notes
    return msgspec.structs.replace(content, verdicts=state.verdicts(content.asked.cells, ended), notes=notes)


def shown(content: GateFile, compared: Sequence[CellComparison]) -> GateFile:
    """Return the file with the verdicts as they are shown: failed trials and cells that are gone have theirs too."""
    trials = itertools.chain((verdict.trials for verdict in content.verdicts), itertools.repeat(None))
    verdicts = (
        GateVerdict(cell.cell.label, cell.metric.name, cell.verdict, cell.failing, cell.why, n)
        for cell, n in zip(compared, trials, strict=False)
    )
    return msgspec.structs.replace(content, verdicts=tuple(verdicts))


def comparison(content: GateFile, base: Sequence[Record], current: Sequence[Record]) -> Comparison:
    """Return the comparison of both sides' records with the gate's verdicts."""
    asked = content.asked
    compared = gate.comparison(content.verdicts, asked.cells, base, current, asked.interims[-1])
    gone = [
        (Side(cell, None, "skipped", "its scenario has it; not run", 0, 0), name)
        for cell in content.gone
        for name in asked.metrics
    ]
    missing = (CellComparison(METRICS[name], side, None, "missing", failing=True) for side, name in gone)
    notes = (*compared.notes, *content.notes, gate.summary(shown(content, compared.cells).verdicts))
    return replace(compared, cells=(*compared.cells, *missing), notes=tuple(filter(None, notes)))
