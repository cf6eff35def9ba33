"""Next steps: the commands that a command suggests when it is done, ready to paste into a shell."""

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

MAX_STEPS = 3
"""The number of commands suggested at once."""


@dataclass(frozen=True)
class NextStep:
    """A suggested command.

    `words` follow `tcbench`. `machine` is where to run it if this machine lacks the device."""

    words: tuple[str, ...]
    purpose: str = ""
    machine: str = ""


def next_lines(steps: Iterable[NextStep], columns: int) -> list[str]:
    """Return a line per suggested command: without duplicates, at most `MAX_STEPS`. The purpose is left out if the line
    would have more than `columns` characters."""
    lines = []
    for step in list(dict.fromkeys(steps))[:MAX_STEPS]:
        line = f"{f'On {step.machine}' if step.machine else 'Next'}: {command_line(*step.words)}"
        full = f"{line}   ({step.purpose})"
        lines.append(full if step.purpose and len(full) <= columns else line)
    return lines


def resume_step(purpose: str) -> NextStep:
    """Return the present command line with --resume, which does the rest of its work."""
    return NextStep(tuple(words_again(resume=True)), purpose)


def out_words(out: Path) -> tuple[str, ...]:
    """Return the --out option for a folder of results, or nothing for the default folder."""
    return () if out == OUT else ("--out", str(out))


def machine_needed(device: str, machine: str | None) -> str:
    """Return "" if this machine has the device, else where to run: `machine`, or the name `device` if that is None."""
    from tcbench.engine.api import device_kinds

    kind = device_kinds().get(device.partition(":")[0])
    return "" if kind is not None and kind.devices() else machine or device


def short_path(path: Path) -> str:
    """Return a path relative to the working folder if it is inside it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def newest_run(out: Path) -> Path | None:
    """Return the run that commands read by default; None if there is none."""
    try:
        return newest(out)
    except SelectionError:
        return None


def run_step(command: str, path: Path, out: Path, purpose: str) -> NextStep:
    """Return a command that reads a run. It names the run's file only if it is not the newest."""
    file = () if newest_run(out) == path else (str(path),)
    return NextStep((command, *file, *out_words(out)), purpose)


def cell_step(
    command: Literal["run", "profile"],
    cell: Cell,
    purpose: str,
    *,
    config: str = "",
    out: Path = OUT,
    threads: bool = False,
    machine: str | None = None,
) -> NextStep | None:
    """Return a command that measures a cell again in its setting (device, images, network).

    `config` replaces the cell's config, `threads` adds --threads, and `machine` is where the results were measured.
    Return None for a scenario that does not come with tcbench, because results do not name a scenario's file."""
    from tcbench.run.scenario import load, setting_of, shipped

    if cell.scenario not in shipped():
        return None
    names = [config or cell.config, cell.scenario]
    if command == "run":
        names = [cell.scenario, "--config", config or cell.config]
    sizes = ["--bs", str(cell.batch_size), *(["--threads", str(cell.threads)] if threads and cell.threads else [])]
    setting = words(setting_of(cell, load(cell.scenario).on(cell.device.partition(":")[0])))
    return NextStep((command, *names, *sizes, *setting, *out_words(out)), purpose, machine_needed(cell.device, machine))
