"""Progress on standard error: a live line with an ETA on a terminal, else a line per trial."""

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
from tcbench.show.format import counted, duration, milliseconds, number
from tcbench.show.tables import Screen


class _Line(ProgressColumn):
    """The text of the live line: count, ETA and current activity. The ETA is an estimate: trials differ in length."""

    def __init__(self, console: Screen, remaining_s: Callable[[], float | None]) -> None:
        super().__init__()
        self._console = console
        self._remaining_s = remaining_s

    def render(self, task: Task) -> Text:
        """Return the line: how many trials are done, the ETA, and the current activity, cut to the terminal's width."""
        remaining_s = self._remaining_s()
        eta = "?" if remaining_s is None else duration(remaining_s)
        done = int(task.completed)
        count = counted(done, "trial") if task.total is None else f"{done}/{task.total:.0f}"
        line = Text.assemble(f"{count} ", (f"ETA {eta}", "cyan"), f" {task.description}")
        # Cut the activity, not the ETA, and leave room for "^C", which would otherwise begin another line.
        line.truncate(self._console.width - len("^C"), overflow="ellipsis")
        return line


class _LogAboveLine(logging.Handler):
    """A log handler that prints warnings through the console, above the live line."""

    def __init__(self, console: Screen) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.say(record.getMessage())


class _Live:
    """A context manager that shows a live line, with warnings above it, on a terminal, and removes it at the end."""

    def __init__(self, console: Screen) -> None:
        self._console = console
        self._handler = _LogAboveLine(console)
        self._progress = Progress(
            _Line(console, self._remaining_s),
            console=console,
            transient=True,
            # Otherwise Rich would wrap the streams of `streams.guard`, which would escape its control sequences.
            redirect_stdout=False,
            redirect_stderr=False,
            disable=console.quiet or not (console.is_terminal and console.is_interactive),
        )

    def __enter__(self) -> Self:
        logging.getLogger("tcbench").addHandler(self._handler)
        try:
            self._progress.start()
        except BaseException:  # such as an interrupt right after the line appears
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
        logging.getLogger("tcbench").removeHandler(self._handler)

    def _remaining_s(self) -> float | None:
        """Return the remaining time; None while it is unknown."""
        raise NotImplementedError


class RunProgress(_Live):
    """The progress of a run, as a context manager. Call `listen` for each message and `finished` after each trial.

    `total` is the number of trials; None if a time budget decides, and then only finished trials are counted."""

    def __init__(self, console: Screen, estimate: TimeLeft, total: int | None) -> None:
        super().__init__(console)
        self._estimate = estimate
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._running_estimate: TimeLeft | None = None
        self._together = 1
        self._tuning_s = 0.0
        self._label = ""
        self._task = self._progress.add_task("starting", total=total)

    def begin(self, label: str, remaining: Sequence[Cell], ahead: int | None, together: int = 1) -> None:
        """Begin the next part of a run, such as a round. Its first `together` trials run at the same time.

        `label` precedes the names of trials, `remaining` are the cells still to run, and `ahead` is the number of
        trials that will certainly run, None if a time budget decides. If there are fewer than expected before, the
        missing ones count as done, so that neither the count nor the total goes down."""
        self._label = f"{label}: " if label else ""
        self._together, self._started = together, time.monotonic()
        self._estimate = replace(self._estimate, remaining=tuple(remaining))
        if ahead is None:
            self._total = None
        else:
            self._total = max(self._total or 0, self._done + ahead)
            self._done = self._total - ahead
        # Set it directly: `update` takes None for "unchanged".
        self._progress.tasks[0].total = self._total
        self._progress.update(self._task, completed=self._done)

    def listen(self, cell: Cell, trial: int, message: Message) -> None:
        """Show a message of the running worker, and estimate the remaining time from it."""
        name = f"{self._label}{cell.label}"
        if isinstance(message, Building):
            if message.part == "imports":
                self._started = self._started if self._together > 1 else time.monotonic()
                self._tuning_s = 0.0
            self._progress.update(self._task, description=f"{name}: {message.part}")
        elif isinstance(message, Tuning):
            self._tuning_s, budget_s = message.spent_s, message.budget_s
            self._running_estimate = self._estimate.tuned(cell, max(self._tuning_s, budget_s))
            spent = f"{message.plans} plans so far, {duration(self._tuning_s)} of at most {duration(budget_s)}"
            self._progress.update(self._task, description=f"{name}: tuning, {spent}")
        elif isinstance(message, Stepped):
            tuned = self._estimate.tuned(cell, self._tuning_s)
            first = message.stage == "warm-up" and message.steps < 2  # it includes one-time preparations
            self._running_estimate = tuned if first else tuned.stepped(cell, message.step_time_s)
            rate = f"{number(cell.images_per_step / message.step_time_s)} {cell.unit}/s"
            if cell.command is not None:  # what a step counts is known at its end
                rate = f"{milliseconds(message.step_time_s)} a step"
            steps = f", {counted(message.steps, 'step')}" if message.steps else ""  # in the timed pass
            activity = f"{name}: {message.stage}{steps}, {rate}"
            self._progress.update(self._task, description=activity)

    def finished(self, record: Record, remaining: Sequence[Cell] | None = None, *, again: bool = False) -> None:
        """Count a finished trial and print a line with its outcome.

        `remaining` are the cells still to run, or None if they are unchanged. `again` means that the trial does not
        count and runs once more: the GPU was slowed down, or the trials that took turns disturbed each other."""
        if record.status != "skipped":
            self._estimate = self._estimate.finished(record)
        if remaining is not None:
            self._estimate = replace(self._estimate, remaining=tuple(remaining))
        self._running_estimate = None
        if self._together > 1:  # the others go on
            self._together -= 1
            self._started += record.duration_s
        else:
            self._started = time.monotonic()
        self._done += not again
        self._progress.update(self._task, completed=self._done)
        eta = duration(self._remaining_s())
        more = f"  (ETA {eta})" if self._progress.disable and self._estimate.remaining else ""
        slowdowns = ", ".join(record.gpu.slowdowns) if record.gpu else ""
        why = f"; it runs again after a pause, since the GPU was slowed down ({slowdowns})" if slowdowns else ""
        why = (why or "; it runs again alone") if again else ""
        count = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
        self._console.say(f"[{count}] {self._label}{record.cell.label}: {outcome(record)}{why}{more}")

    def _remaining_s(self) -> float:
        spent = max(0.0, time.monotonic() - self._started)
        return (self._running_estimate or self._estimate).remaining_s(spent, self._together)


def outcome(record: Record) -> str:
    """Say in a few words how a trial ended: its throughput, or its status and the reason."""
    if record.measurement is None:
        return f"{record.status}: {record.reason}"
    rate = images_per_s(record.images_per_step, record.measurement.counted_times_s)
    return f"{number(rate)} {record.cell.unit}/s"


class Stages(_Live):
    """The progress of several stages of work, one after another, as a context manager. Call `advance` as work is done.
    On a terminal it is a live line with an ETA, otherwise a line every few seconds."""

    def __init__(self, console: Screen) -> None:
        super().__init__(console)
        self._stage = ""
        self._task: Any = None
        self._total = 0
        self._initial = 0
        # Pairs of time and units done: after the first new unit, at the last new unit, and at the last printed line.
        self._first = self._last = self._printed = (0.0, 0)

    def advance(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` units of a stage are done.

        Units that are done at a stage's first report, such as cached ones, do not count for the ETA."""
        now = time.monotonic()
        self._total = total
        if stage != self._stage:
            self._stage, self._initial, self._first, self._last, self._printed = stage, done, *[(now, done)] * 3
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(stage, total=total)
        if done > self._last[1]:
            self._last = (now, done)
            self._first = self._last if self._first[1] == self._initial else self._first
        self._progress.update(self._task, completed=done, total=total)
        if self._progress.disable and done < total and now - self._printed[0] >= _LINE_EVERY_S:
            self._printed = (now, done)
            remaining_s = self._remaining_s()
            eta = "" if remaining_s is None else f", ETA {duration(remaining_s)}"
            self._console.say(f"{stage}: {done}/{total}{eta}")

    def _remaining_s(self) -> float | None:
        """Return the remaining time of the stage, from the speed of all units but the first, which includes start-up
        costs. None before the second unit is done."""
        (first_s, first), (last_s, last) = self._first, self._last
        if last == first:
            return None
        remaining_s = (last_s - first_s) / (last - first) * (self._total - last)
        return max(0.0, remaining_s - (time.monotonic() - last_s))


_LINE_EVERY_S = 5.0
