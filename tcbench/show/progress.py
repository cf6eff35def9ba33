"""Progress on standard error: a live line with an ETA on a terminal, one line per trial in a file or pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from tcbench.analysis.eta import Estimate
from tcbench.core.messages import Building, Message, Stepped
from tcbench.core.record import Cell, Record
from tcbench.show.format import duration, number


class RunProgress:
    """Shows a run's trials as they go. A context manager; Call `listen` and `finished` as things happen."""

    def __init__(self, console: Console, estimate: Estimate, total: int, quiet: bool) -> None:
        self._console = console
        self._estimate = estimate
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._seen_of_running: Estimate | None = None
        self._quiet = quiet
        self._label = ""
        self._progress = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            _Remaining(self._remaining_s),
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
            ),
            console=console,
            transient=True,
            expand=True,  # so that on a narrow terminal the words are cut, not the ETA
            disable=quiet or not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=total)

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, label: str, remaining: Sequence[Cell], total: int) -> None:
        """Begin a part of a run that grows: its trials' names start with `label`, `remaining` are the cells still to be
        run, and `total` trials are expected by now."""
        self._label, self._total = f"{label}: " if label else "", total
        self._estimate = replace(self._estimate, remaining=tuple(remaining))
        self._progress.update(self._task, total=total)

    def listen(self, cell: Cell, trial: int, message: Message) -> None:
        """Show a message of the running worker."""
        name = f"{self._label}{cell.label}"
        if isinstance(message, Building):
            if message.what == "imports":
                self._started = time.monotonic()
            self._progress.update(self._task, description=f"{name}: {message.what}")
        elif isinstance(message, Stepped):
            self._seen_of_running = self._estimate.stepped(cell, message.step_time_s)
            rate = cell.images_per_step / message.step_time_s
            what = f"{name}: {message.stage}, {message.steps} steps, {number(rate)} {cell.unit}/s"
            self._progress.update(self._task, description=what)

    def finished(self, record: Record, remaining: Sequence[Cell] | None = None, total: int | None = None) -> None:
        """A trial has ended. `remaining` and `total` as for `begin`, where they are others now."""
        if record.status != "skipped":
            self._estimate = self._estimate.finished(record)
        if remaining is not None:
            self._estimate = replace(self._estimate, remaining=tuple(remaining))
        if total is not None:
            self._total = total
            self._progress.update(self._task, total=total)
        self._seen_of_running = None
        self._started = time.monotonic()
        self._done += 1
        self._progress.update(self._task, completed=self._done)
        if not self._quiet:
            left = duration(self._estimate.remaining_s())
            more = f"  (ETA {left})" if not self._console.is_terminal and self._estimate.remaining else ""
            line = f"[{self._done}/{self._total}] {self._label}{record.cell.label}: {outcome(record)}{more}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _remaining_s(self) -> float:
        spent = time.monotonic() - self._started
        return (self._seen_of_running or self._estimate).remaining_s(spent)


class _Remaining(ProgressColumn):
    """The ETA, from the estimate rather than from trials per second: trials differ in length."""

    max_refresh = 0.5

    def __init__(self, remaining_s: Callable[[], float]) -> None:
        super().__init__()
        self._remaining_s = remaining_s

    def render(self, task: Task) -> Text:
        return Text(f"ETA {duration(self._remaining_s())}", style="cyan")


def outcome(record: Record) -> str:
    """One trial's end in a few words."""
    measured = record.measurement
    if measured is None:
        return f"{record.status}: {record.reason}"
    counted = measured.counted_times_s
    return f"{number(record.cell.images_per_step * len(counted) / sum(counted))} {record.cell.unit}/s"


@contextmanager
def counting(console: Console, what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that counts (done, total), with an ETA."""
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn(what), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("ETA")]
    progress = Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet or not console.is_terminal
    )
    task = progress.add_task(what, total=None, start=False, visible=False)
    announced = False

    def advance(done: int, total: int) -> None:
        nonlocal announced
        if not announced:
            announced = True
            progress.start_task(task)
            if not quiet and not console.is_terminal:
                console.print(f"{what} ({total} files)", highlight=False)
        progress.update(task, completed=done, total=total, visible=True)

    with progress:
        yield advance


class Stages:
    """A few kinds of work one after another, each counted: a bar with an ETA on a terminal, a line now and then
    without one. A context manager; call `advance` (what, how much is done, of how much)."""

    def __init__(self, console: Console, quiet: bool) -> None:
        from rich.progress import MofNCompleteColumn, TimeRemainingColumn

        columns: list[Any] = [
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
        ]
        live = not quiet and console.is_terminal
        self._progress = Progress(*columns, TextColumn("ETA"), TimeRemainingColumn(), console=console, disable=not live)
        self._progress.live.transient = True
        self._console = console
        self._lines = not quiet and not live
        self._what = ""
        self._task: Any = None
        self._started = self._said = (0.0, 0)

    def __enter__(self) -> Stages:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, what: str, done: int, total: int) -> None:
        """`done` of `total` are done; what was there at the first word of a stage took no time."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._started, self._said = what, (now, done), (now, done)
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(what, total=total)
        self._progress.update(self._task, completed=done)
        if self._lines and done < total and now - self._said[0] >= _LINE_EVERY_S:
            self._said = (now, done)
            since_s, new = now - self._started[0], done - self._started[1]
            left = f", ETA {duration(since_s / new * (total - done))}" if new else ""
            self._console.print(f"{what}: {done}/{total}{left}", markup=False, highlight=False, soft_wrap=True)


_LINE_EVERY_S = 5.0
