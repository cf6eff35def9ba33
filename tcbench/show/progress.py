"""Progress on standard error: a live line with an ETA on a terminal, one line per trial in a file or pipe."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from tcbench.analysis.stats import images_per_s
from tcbench.core.messages import Building, Message, Stepped, Tuning
from tcbench.core.record import Cell, Record
from tcbench.run.eta import TimeLeft
from tcbench.show.format import counted, duration, number
from tcbench.show.tables import Screen


class _Line(ProgressColumn):
    """The count, the ETA, and what is being done. The ETA is from an estimate, since trials differ in length."""

    def __init__(self, console: Screen, remaining_s: Callable[[], float | None]) -> None:
        super().__init__()
        self._console = console
        self._remaining_s = remaining_s

    def render(self, task: Task) -> Text:
        left_s = self._remaining_s()
        left = "?" if left_s is None else duration(left_s)
        done = int(task.completed)
        count = counted(done, "trial") if task.total is None else f"{done}/{task.total:.0f}"
        line = Text.assemble(f"{count} ", (f"ETA {left}", "cyan"), f" {task.description}")
        # On a narrow terminal the words are cut, not the ETA; and a ^C has its place, or it would begin another line.
        line.truncate(self._console.width - len("^C"), overflow="ellipsis")
        return line


class _AboveTheLine(logging.Handler):
    """Prints warnings through the console, which keeps the live line on a line of its own."""

    def __init__(self, console: Screen) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.say(record.getMessage())


class _Live:
    """A live line on a terminal, which goes when all is done. A context manager."""

    def __init__(self, console: Screen) -> None:
        self._console = console
        self._handler = _AboveTheLine(console)
        self._progress = Progress(
            _Line(console, self._remaining_s),
            console=console,
            transient=True,
            # Rich would put a stream of its own before the guarded one; its own escapes would then be shown as text.
            redirect_stdout=False,
            redirect_stderr=False,
            disable=console.quiet or not (console.is_terminal and console.is_interactive),
        )

    def __enter__(self) -> Self:
        logging.getLogger("tcbench").addHandler(self._handler)
        try:
            self._progress.start()
        except BaseException:  # an interrupt that comes as soon as the line is seen
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
        logging.getLogger("tcbench").removeHandler(self._handler)

    def _remaining_s(self) -> float | None:
        """The ETA; None before anything is known of it."""
        raise NotImplementedError


class RunProgress(_Live):
    """Shows a run's trials as they go. A context manager; call `listen` and `finished` as things happen. `total`: the
    number of trials; None where nobody knows it, as only time decides: those that are over are counted then."""

    def __init__(self, console: Screen, estimate: TimeLeft, total: int | None) -> None:
        super().__init__(console)
        self._estimate = estimate
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._seen_of_running: TimeLeft | None = None
        self._tuning_s = 0.0
        self._label = ""
        self._task = self._progress.add_task("starting", total=total)

    def begin(self, label: str, remaining: Sequence[Cell], ahead: int | None) -> None:
        """Begin a part of a run that grows: its trials' names start with `label`, `remaining` are the cells still to be
        run, and `ahead` trials are certain to come. Where fewer are than were before, the others count as over: neither
        the count nor the total ever goes down."""
        self._label = f"{label}: " if label else ""
        self._estimate = replace(self._estimate, remaining=tuple(remaining))
        if ahead is None:
            self._total = None
        else:
            self._total = max(self._total or 0, self._done + ahead)
            self._done = self._total - ahead
        # Rich's `update` takes None for "as it is".
        self._progress.tasks[0].total = self._total
        self._progress.update(self._task, completed=self._done)

    def listen(self, cell: Cell, trial: int, message: Message) -> None:
        """Show a message of the running worker."""
        name = f"{self._label}{cell.label}"
        if isinstance(message, Building):
            if message.part == "imports":
                self._started, self._tuning_s = time.monotonic(), 0.0
            self._progress.update(self._task, description=f"{name}: {message.part}")
        elif isinstance(message, Tuning):
            self._tuning_s, budget_s = message.spent_s, message.budget_s
            self._seen_of_running = self._estimate.tuned(cell, max(self._tuning_s, budget_s))
            of = f"{message.plans} plans so far, {duration(self._tuning_s)} of at most {duration(budget_s)}"
            self._progress.update(self._task, description=f"{name}: tuning, {of}")
        elif isinstance(message, Stepped):
            tuned = self._estimate.tuned(cell, self._tuning_s)
            first = message.stage == "warm-up" and message.steps < 2  # it also prepares all that is kept
            self._seen_of_running = tuned if first else tuned.stepped(cell, message.step_time_s)
            rate = cell.images_per_step / message.step_time_s
            steps = f", {counted(message.steps, 'step')}" if message.steps else ""  # of the timed pass, block by block
            what = f"{name}: {message.stage}{steps}, {number(rate)} {cell.unit}/s"
            self._progress.update(self._task, description=what)

    def finished(self, record: Record, remaining: Sequence[Cell] | None = None, *, again: bool = False) -> None:
        """A trial has ended. `remaining` as for `begin`, where these are others now. `again`: its GPU was slowed down,
        and it is run once more."""
        if record.status != "skipped":
            self._estimate = self._estimate.finished(record)
        if remaining is not None:
            self._estimate = replace(self._estimate, remaining=tuple(remaining))
        self._seen_of_running = None
        self._started = time.monotonic()
        self._done += not again
        self._progress.update(self._task, completed=self._done)
        left = duration(self._estimate.remaining_s())
        more = f"  (ETA {left})" if self._progress.disable and self._estimate.remaining else ""
        slowdowns = ", ".join(record.gpu.slowdowns) if record.gpu else ""
        why = f"; it runs again after a pause, since the GPU was slowed down ({slowdowns})" if again else ""
        count = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
        self._console.say(f"[{count}] {self._label}{record.cell.label}: {outcome(record)}{why}{more}")

    def _remaining_s(self) -> float:
        spent = time.monotonic() - self._started
        return (self._seen_of_running or self._estimate).remaining_s(spent)


def outcome(record: Record) -> str:
    """One trial's end in a few words."""
    measured = record.measurement
    if measured is None:
        return f"{record.status}: {record.reason}"
    return f"{number(images_per_s(record.cell.images_per_step, measured.counted_times_s))} {record.cell.unit}/s"


class Stages(_Live):
    """A few kinds of work one after another, each counted: a live line with an ETA on a terminal, a line now and then
    without one. A context manager; call `advance` (what, how much is done, of how much)."""

    def __init__(self, console: Screen) -> None:
        super().__init__(console)
        self._what = ""
        self._task: Any = None
        self._total = 0
        self._there = 0
        self._first = self._last = self._said = (0.0, 0)

    def advance(self, what: str, done: int, total: int) -> None:
        """`done` of `total` are done; what was there at the first word of a stage took no time."""
        now = time.monotonic()
        self._total = total
        if what != self._what:
            self._what, self._there, self._first, self._last, self._said = what, done, *[(now, done)] * 3
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(what, total=total)
        if done > self._last[1]:
            self._last = (now, done)
            self._first = self._last if self._first[1] == self._there else self._first
        self._progress.update(self._task, completed=done, total=total)
        if self._progress.disable and done < total and now - self._said[0] >= _LINE_EVERY_S:
            self._said = (now, done)
            left_s = self._remaining_s()
            left = "" if left_s is None else f", ETA {duration(left_s)}"
            self._console.say(f"{what}: {done}/{total}{left}")

    def _remaining_s(self) -> float | None:
        """By those after the first, which starts what they find running."""
        (first_s, first), (last_s, last) = self._first, self._last
        if last == first:
            return None
        left_s = (last_s - first_s) / (last - first) * (self._total - last)
        return max(0.0, left_s - (time.monotonic() - last_s))


_LINE_EVERY_S = 5.0
