"""What to do next: the commands that a command offers when it is done, each as it can be pasted into a shell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tcbench.core.errors import SelectionError
from tcbench.show.app import OUT, command_line, words_again
from tcbench.show.options import words
from tcbench.show.results import newest

if TYPE_CHECKING:
    from tcbench.core.record import Cell

MOST = 3
"""Commands that are offered at once."""


@dataclass(frozen=True)
class NextStep:
    """A command: the words after `tcbench`, what it is good for, and the machine that it asks for, where this one lacks
    the device."""

    words: tuple[str, ...]
    says: str = ""
    on: str = ""


def next_lines(steps: Iterable[NextStep], columns: int) -> list[str]:
    """A line for each of the first steps; what it is good for is left out where there is no room."""
    lines = []
    for step in list(dict.fromkeys(steps))[:MOST]:
        line = f"{f'On {step.on}' if step.on else 'Next'}: {command_line(*step.words)}"
        full = f"{line}   ({step.says})"
        lines.append(full if step.says and len(full) <= columns else line)
    return lines


def again(says: str) -> NextStep:
    """The command that was given, to go on with what is left of it."""
    return NextStep(tuple(words_again(resume=True)), says)


def folder(out: Path) -> tuple[str, ...]:
    """The option that names the folder of results, where it is not the default."""
    return () if out == OUT else ("--out", str(out))


def elsewhere(device: str, machine: str | None) -> str:
    """The machine of a cell's results where this one has no such device; empty where it has."""
    from tcbench.engine.accelerators.device import kinds

    kind = kinds().get(device.partition(":")[0])
    return "" if kind is not None and kind.devices() else machine or device


def from_here(path: Path) -> str:
    """A path as a command names it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def newest_run(out: Path) -> Path | None:
    """The run that a command reads which is told of none; None where there is none."""
    try:
        return newest(out)
    except SelectionError:
        return None


def of_run(command: str, path: Path, out: Path, says: str) -> NextStep:
    """A command that reads a run, whose file is only named where it is not the newest."""
    named = () if newest_run(out) == path else (str(path),)
    return NextStep((command, *named, *folder(out)), says)


def of_cell(
    command: Literal["run", "profile"],
    cell: Cell,
    says: str,
    *,
    config: str = "",
    out: Path = OUT,
    threads: bool = False,
    machine: str | None = None,
) -> NextStep | None:
    """A command on a cell, in its setting: its device, images, network. `config` in place of the cell's; with its
    `threads`; on the `machine` of its results where this one has no such device. None where the cell does not tell
    which file its scenario is."""
    from tcbench.run.scenario import load, setting_of, shipped

    if cell.scenario not in shipped():
        return None
    named = [cell.scenario, "--config", config or cell.config]
    if command == "profile":
        named = [config or cell.config, cell.scenario]
    sizes = ["--bs", str(cell.batch_size), *(["--threads", str(cell.threads)] if threads else [])]
    setting = words(setting_of(cell, load(cell.scenario).on(cell.device.partition(":")[0])))
    return NextStep((command, *named, *sizes, *setting, *folder(out)), says, elsewhere(cell.device, machine))
