"""The question and the decisions of a gate, in a file beside its records: `gate-...-verdicts.json`.

It is written before the first trial, so that a gate that was ended by whatever can be gone on with, and again with the
verdicts. Whoever compares the records shows these: a gate judges look by look, and a comparison of all trials at once
may say something else in a cell or two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from tcbench.analysis import verdict
from tcbench.analysis.compare import METRICS, Comparison
from tcbench.analysis.verdict import Decision, Interim, Rule
from tcbench.core import files, store
from tcbench.core.errors import StoreError
from tcbench.core.record import Cell, Record
from tcbench.core.text import decode
from tcbench.run import gate
from tcbench.run.gate import BASE, CURRENT, Gate, Role, Settling

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


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: by each metric the decision and the trials a side that made it, None where it is open; `interims` are
    how many looks were taken."""

    decisions: tuple[tuple[Decision, int] | None, ...]
    interims: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One line of what was shown, for programs."""

    cell: str
    metric: str
    verdict: str
    failing: bool
    why: str | None = None


class GateFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file; history of its form: 1, the first. `names` are the two sides' for people. `judged` is empty until the
    gate has ended; `ended` is why where it ended before all was decided; `gone` are cells that only base's scenario
    has."""

    schema: Literal["tcbench-gate"] = "tcbench-gate"
    schema_version: Literal[1] = 1
    asked: GateQuestion
    names: tuple[str, str]
    judged: tuple[Judged, ...] = ()
    gone: tuple[Cell, ...] = ()
    notes: tuple[str, ...] = ()
    ended: str = "the gate ended"
    verdicts: tuple[Verdict, ...] = ()

    @property
    def finished(self) -> bool:
        return bool(self.judged)


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
    """Raises StoreError."""
    try:
        content: GateFile = decode(files.read(path), GateFile)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: expected the verdicts of a gate (tcbench-gate 1): {error}") from None
    return content


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
    """With the decisions of a gate that has ended; `spent` says so where its budget ended it."""
    trials = [interim.trials for interim in state.interims]
    return msgspec.structs.replace(
        content,
        judged=tuple(
            Judged(decisions=tuple(d and (d[0], trials[d[1]]) for d in cell.decisions), interims=cell.interims_taken)
            for cell in state.cells
        ),
        notes=(spent, *content.notes) if spent else content.notes,
        ended="the budget was spent" if spent else content.ended,
    )


def shown(content: GateFile, comparison: Comparison) -> GateFile:
    """With the verdicts as they are shown."""
    verdicts = (
        Verdict(cell=one.cell.label, metric=one.metric.name, verdict=one.verdict, failing=one.failing, why=one.why)
        for one in comparison.cells
    )
    return msgspec.structs.replace(content, verdicts=tuple(verdicts))


def comparison(content: GateFile, base: Sequence[Record], current: Sequence[Record]) -> Comparison:
    """The records of both sides with the verdicts that the gate gave."""
    asked = content.asked
    metrics = tuple(METRICS[name] for name in asked.metrics)

    def trials(cell: Cell, records: Sequence[Record]) -> tuple[Record, ...]:
        return tuple(record for record in records if record.cell.key == cell.key)

    state = replace(
        gate.start(len(asked.cells), asked.interims, asked.metrics),
        cells=tuple(
            Settling(
                metrics,
                tuple(made and (made[0], asked.trials.index(made[1])) for made in kept.decisions),
                trials(cell, base),
                trials(cell, current),
                kept.interims,
            )
            for cell, kept in zip(asked.cells, content.judged, strict=True)
        ),
    )
    compared = gate.comparison(state, asked.cells, base, current, asked.rule, content.ended)
    missing = (one for cell in content.gone for one in gate.missing(cell, metrics))
    notes = (*content.notes, gate.summary(state))
    return replace(compared, cells=(*compared.cells, *missing), notes=(*compared.notes, *filter(None, notes)))
