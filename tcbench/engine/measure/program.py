"""Measures a program of the user's: a command line that this process runs as its child.

If the program's loop uses `tcbench.steps`, its processes (`tcbench.marks`) connect to a Unix socket and time their own
steps. Both ends send lines of JSON. A process first introduces itself, and the answer says how many steps it is to
take. It reports finished steps, and with `waits` it waits for an answer: at the end of warm-up, and in a gate after
each block of steps. Its last message is the result. Several processes with the same loop are ranks.

Any other program is measured as a whole process. A step is then a run of the program, or, if the command contains
`{steps}`, the difference between runs of two lengths divided by the difference of their steps."""

import contextlib
import json
import math
import os
import secrets
import select
import shlex
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tcbench import marks
from tcbench.core import cache, messages
from tcbench.core.git import GitError, Repository
from tcbench.core.messages import Message, Piloted, Stepped
from tcbench.core.process import Child
from tcbench.core.record import Cell, Command, Environment, Measurement, PhaseTimes
from tcbench.engine import clock
from tcbench.engine.measure import marked_steps, pipe
from tcbench.engine.measure.marked_steps import (
    UNREPORTED,
    Advance,
    Introduction,
    LoopMessage,
    MarkedSteps,
    ProgramError,
    RankResult,
)

Listen = Callable[[Message], None]

_PILOT_STEPS = 4
"""The counted steps of a pilot."""

_SHORTEST_BLOCK_S = 0.1
"""The shortest block of steps in a gate. The first step after the other side's turn finds cold caches."""

_PREFETCHED_PER_BLOCK = 10
"""The ratio of a block's steps to the length of the loader's prefetch queue, at least. The queue fills up while the
other side of a gate runs, which makes the first steps of a block faster."""

_LEAST_RUNS = 2
"""The least number of counted runs of a program without marked steps."""

_LAST_WORDS_S = 1.0
"""Seconds of silence after which a connection that outlives the program is given up."""

_SAMPLING_S = 0.1
"""Seconds between two readings of the memory of a program that marks no steps."""

_OTHER_LOOPS_S = 30.0
"""Seconds after which a program with other loops fails if it has not begun the one that the config names."""

_END_S = 15.0
"""Seconds that a program may take to end after its last measured step. Then it is killed."""


_decoder = msgspec.json.Decoder(LoopMessage)


class _Loop:
    """A loop in one of the program's processes, which sends lines of JSON over a connection.

    - `introduction`, `marked`: its first and its last message; None until they arrive.
    - `finished`: the number of its finished steps; `step_s`: the time of the last one that it reported.
    - `ended_s`: when its last step ended, by `time.monotonic`; 0 before. `peak_bytes`: the peak memory of its process.
    - `waiting`: it waits for an answer; `closed`: its connection has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._pending = connection, bytearray()
        self.introduction: Introduction | None = None
        self.marked: MarkedSteps | None = None
        self.finished, self.step_s, self.peak_bytes, self.ended_s = 0, 1.0, 0, 0.0
        self.waiting = self.closed = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def receive(self) -> list[LoopMessage]:
        """Return the messages that have arrived completely. At the end of the connection, set `closed`. Raises
        msgspec.DecodeError for anything else."""
        try:
            chunk = self._connection.recv(1 << 20)
        except ConnectionError:
            chunk = b""
        if not chunk:
            self.close()
        self._pending += chunk
        lines: list[bytearray] = []
        if b"\n" in chunk:  # a result comes in many parts
            *lines, self._pending = self._pending.split(b"\n")
        return [_decoder.decode(line) for line in lines]

    def close(self) -> None:
        """Close the connection."""
        self.closed, self.waiting = True, False
        self._connection.close()

    def answer(self, **message: Any) -> None:
        """Answer the last message."""
        self.waiting = False
        with contextlib.suppress(ConnectionError):  # it has ended; its exit code says why
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    @property
    def rank(self) -> float:
        """The rank of its process, after all others if it has none."""
        return math.inf if self.introduction is None or self.introduction.rank is None else self.introduction.rank


@dataclass
class _Run:
    """A run of the program: its duration in seconds, all connections, the measured loops, the names of others, the
    number of steps in a block (0: undivided) and of all timed steps, and whether it had to be killed at the end."""

    elapsed_s: float = 0.0
    connections: list[_Loop] = field(default_factory=list)
    loops: list[_Loop] = field(default_factory=list)
    other_names: list[str] = field(default_factory=list)
    block: int = 0
    steps: int = 0
    killed: bool = False


def measure(cell: Cell, command: Command, environment: Environment, listen: Listen) -> tuple[Measurement, Environment]:
    """Run and measure a cell's program. Return the measurement, and the environment with what the program reported.

    If the number of steps is unknown, this is a pilot: a few steps, from which it derives and sends the number. Raises
    ProgramError."""
    count = cell.measure.steps or int(os.environ.get(messages.STEP_COUNT, "0"))
    program = _Program(cell, command, count, listen)
    if "{steps}" in command.line:
        return program.measured_by_lengths(), environment
    run = program.run()
    if not run.loops:
        return program.measured_by_runs(run), environment
    results = program.results_of(run)
    measurement = marked_steps.measurement(cell, results, run.block or run.steps)
    if run.killed:
        doubt = f"killed {_END_S:.0f} s after its last step, since it did not end"
        measurement = msgspec.structs.replace(measurement, checks={"end": doubt})
    program.send_count(statistics.median(measurement.counted_times_s), cell.measure.min_timed_steps)
    return measurement, marked_steps.with_reports(environment, [rank.marked for rank in results])


class _Program:
    """A cell's program, ready to run. `count` is the number of counted steps; in a pilot it is 0."""

    def __init__(self, cell: Cell, command: Command, count: int, listen: Listen) -> None:
        self._cell, self._command, self._count, self._listen = cell, command, count, listen
        self._in_turns = pipe.alternates()
        self._peak_bytes = 0  # of a program without marks
        self._folder = _folder(command.revision)
        self._warm_up = cell.measure.min_warmup_steps
        if count:
            self._warm_up = max(self._warm_up, min(cell.measure.max_warmup_steps, math.ceil(count / 10)))

    def run(self, steps: int = 0) -> _Run:
        """Run the program once and serve its loops; `steps` replaces `{steps}`. Raises ProgramError if it fails."""
        run, words = _Run(), self._words(steps)
        with socket.socket(socket.AF_UNIX) as listening:
            name = f"tcbench-{secrets.token_hex(16)}"
            listening.bind(f"\0{name}")  # an abstract name (unix(7)): a killed worker leaves no file behind
            listening.listen()
            variables = {**os.environ, **dict(self._command.environment), marks.SOCKET: name}
            try:
                child = Child(words, folder=self._folder, environment=variables)
            except OSError as error:
                raise ProgramError(
                    f"the command `{words[0]}` cannot be started: {error.strerror}; is its environment active?"
                ) from None
            try:
                run.killed = self._serve(run, child, listening)
            finally:
                child.kill()
                for loop in run.connections:
                    loop.close()
            run.elapsed_s = child.elapsed_s
            last_line = child.last_line()
        if child.code and not run.killed:
            how = f"exit code {child.code}" if child.code > 0 else f"killed by signal {-child.code}"
            hint = _NOT_INSTALLED if "No module named 'tcbench'" in last_line else ""
            raise ProgramError(f"the program failed ({how}): {last_line or 'it printed nothing'}{hint}")
        return run

    def _serve(self, run: _Run, child: Child, listening: socket.socket) -> bool:
        """Exchange messages with the program until it ends. Return whether it had to be killed because it did not end
        after its last measured step."""
        began_s = time.monotonic()
        while child.code is None:
            open_loops = [loop for loop in run.connections if not loop.closed]
            sources: list[Any] = [listening, child, *open_loops]
            ready = select.select(sources, [], [], 1.0 if run.loops else _SAMPLING_S)[0]
            if not run.loops:
                self._peak_bytes = max(self._peak_bytes, clock.peak_bytes_of(child.pid))
                if run.other_names and time.monotonic() - began_s > _OTHER_LOOPS_S:
                    raise self._no_such_loop(run)
            if listening in ready:
                run.connections += _accepted(listening)
            for loop in open_loops:
                for message in loop.receive() if loop in ready else ():
                    self._hear(run, loop, message)
            self._release(run)
            ended = bool(run.loops) and all(loop.marked is not None for loop in run.loops)
            overdue = ended and time.monotonic() - max(loop.ended_s for loop in run.loops) > _END_S
            if overdue and not self._command.goes_on:
                return True
        while left := [loop for loop in run.loops if not loop.closed]:  # what arrived before the end
            if not (ready := select.select(left, [], [], _LAST_WORDS_S)[0]):
                break  # a process that the program left behind holds the connection open
            for loop in ready:
                for message in loop.receive():
                    self._hear(run, loop, message)
        return False

    def _hear(self, run: _Run, loop: _Loop, message: LoopMessage) -> None:
        """Handle a message of a loop. Raises ProgramError if the loop contradicts the scenario."""
        match message:
            case Introduction():
                loop.introduction = message
                if message.name != self._command.loop:
                    run.other_names.append(message.name)
                    loop.answer(measured=False)
                    return
                run.loops.append(loop)
                self._check(message)
                loop.answer(measured=True, warm_up=self._warm_up, goes_on=self._command.goes_on)
            case Advance(left_out_s=float(left_out_s)):
                if not any(other.ended_s for other in run.loops):
                    self._listen(Stepped("profiled", 0, loop.step_s, facts_s=left_out_s))
                loop.ended_s = time.monotonic()
                seen_bytes = clock.peak_bytes_of(loop.introduction.pid) if loop.introduction else 0
                loop.peak_bytes = max(message.resident_bytes, seen_bytes)  # 0 if the process has ended
            case Advance():
                loop.finished, loop.waiting = message.finished, message.waits
                loop.step_s = message.step_s or loop.step_s
                in_warm_up = loop.finished < self._warm_up
                if not loop.waiting and loop is run.loops[0] and (in_warm_up or not self._in_turns):
                    steps = loop.finished if in_warm_up else loop.finished - self._warm_up
                    self._listen(Stepped("warm-up" if in_warm_up else "timed", max(1, steps), loop.step_s))
            case MarkedSteps():
                loop.marked = message

    def _release(self, run: _Run) -> None:
        """Answer the loops that wait between blocks of steps: in a gate, when all of them do, and after the turn of the
        other side; else at once."""
        waiting = [loop for loop in run.loops if loop.waiting]
        stepping = [loop for loop in run.loops if not (loop.ended_s or loop.closed)]
        if not waiting or (self._in_turns and len(waiting) < len(stepping)):
            return
        steps = max(0, waiting[0].finished - self._warm_up)
        if self._in_turns or len(waiting) == len(run.loops) or waiting[0] is run.loops[0]:
            self._listen(Stepped("timed", steps, waiting[0].step_s))
        if not run.steps:
            run.block, run.steps = self._division(waiting[0])
        for loop in waiting:
            loop.answer(steps=run.steps, block=run.block)

    def _words(self, steps: int) -> list[str]:
        """Return the words of the command line, with the cell's values in place of the names in braces."""
        cell, line = self._cell, self._command.line
        values = {"batch_size": cell.batch_size, "ranks": cell.ranks, "seed": cell.seed, "steps": steps}
        for name, number in values.items():
            line = line.replace(f"{{{name}}}", str(number))
        return shlex.split(line)

    def _division(self, loop: _Loop) -> tuple[int, int]:
        """Return the number of steps in a block (0: one block has all steps) and of all timed steps, after the warm-up
        of a loop. The first step of each block is not counted."""
        counted = self._count or _PILOT_STEPS
        if not self._in_turns:
            return 0, counted + 1
        longest_queue = _PREFETCHED_PER_BLOCK * (loop.introduction.prefetch if loop.introduction else 0)
        block = max(self._cell.measure.block_steps, 1 + math.ceil(_SHORTEST_BLOCK_S / loop.step_s), longest_queue)
        return block, block * math.ceil(counted / (block - 1))

    def _check(self, loop: Introduction) -> None:
        """Raise ProgramError if a loop's unit or batch size differs from the scenario's."""
        cell = self._cell
        if loop.unit not in (cell.unit, _DEFAULT_UNIT):
            raise ProgramError(
                f"the program counts {loop.unit} (`unit` of tcbench.steps), the scenario {cell.unit}: "
                f'write unit = "{loop.unit}" into the scenario'
            )
        if loop.batch_size not in (None, cell.batch_size):
            raise ProgramError(
                f"the loader's batch size is {loop.batch_size}, the scenario's {cell.batch_size}: correct "
                "`batch_sizes`, or pass {batch_size} on in the command"
            )

    def send_count(self, step_s: float, least: int = _LEAST_RUNS) -> None:
        """Send the number of steps for the trials if this is a pilot. `step_s` is the duration of a step."""
        if not self._count:
            self._listen(Piloted(max(least, math.ceil(self._cell.measure.max_time_s / step_s))))

    def results_of(self, run: _Run) -> list[RankResult]:
        """Return the results of a run's ranks, in order. Raises ProgramError if one took too few steps, or if there are
        more or fewer ranks than the cell has."""
        cell = self._cell
        results = [
            RankResult(loop.introduction, loop.marked, loop.peak_bytes)
            for loop in sorted(run.loops, key=lambda loop: loop.rank)
            if loop.introduction is not None and loop.marked is not None
        ]
        if len(results) < len(run.loops):
            finished = min(loop.finished for loop in run.loops)
            needed = self._warm_up + (run.steps or 1 + (self._count or _PILOT_STEPS))
            fitting = min(finished - cell.measure.min_warmup_steps, int(finished / 1.1)) - 1
            remedy = f", or write steps = {fitting} under [measure]" if fitting > 0 else ""
            raise ProgramError(
                f"the program reported {finished} steps and ended; this trial needs {needed}: let it train longer"
                f"{remedy}"
            )
        if cell.ranks > 1 and len(results) != cell.ranks:
            raise ProgramError(
                f"{len(results)} processes train, but the cell has {cell.ranks} ranks: the command itself starts them, "
                "e.g. by torchrun --nproc-per-node {ranks}"
            )
        return results

    def _no_such_loop(self, run: _Run) -> ProgramError:
        """Return the error that the program has loops, but not the one that the config names."""
        return ProgramError(
            f"the program has no loop '{self._command.loop}', only '{run.other_names[0]}' (`name` of "
            f'tcbench.steps): write loop = "{run.other_names[0]}" into the config'
        )

    def measured_by_runs(self, first: _Run) -> Measurement:
        """Return the measurement of a program without marked steps: each step is a run. The first is not counted, since
        files are read from the disk then. Raises ProgramError."""
        if first.other_names:
            raise self._no_such_loop(first)
        runs_s = [first.elapsed_s]
        self._listen(Stepped("timed", 0, runs_s[0]))
        while len(runs_s) < 1 + (self._count or 1):
            runs_s.append(self.run().elapsed_s)
            self._listen(Stepped("timed", len(runs_s) - 1, runs_s[-1]))
        self._listen(Stepped("profiled", 0, runs_s[-1]))
        self.send_count(runs_s[-1])
        return _measurement_of_runs(runs_s, [(0, run_s) for run_s in runs_s], self._peak_bytes)

    def measured_by_lengths(self) -> Measurement:
        """Return the measurement of a program whose command contains `{steps}`: two runs of different lengths give the
        time per step, and with it the time of starting. Raises ProgramError if the longer run takes no longer."""
        short = self._cell.measure.min_warmup_steps
        more = self._count or _PILOT_STEPS
        first_s = self.run(short).elapsed_s  # files are read from the disk
        self._listen(Stepped("timed", 0, first_s / short))
        while True:
            short_s, long_s = self.run(short).elapsed_s, self.run(short + more).elapsed_s
            step_s = (long_s - short_s) / more
            if self._count or long_s > _CLEARLY_LONGER * short_s or more > _MOST_STEPS:
                break
            more *= 4
        if step_s <= 0:
            raise ProgramError(
                f"not believed: {short + more} steps took {long_s:.3g} s, and {short} steps {short_s:.3g} s; does the "
                "command use {steps}?"
            )
        self._listen(Stepped("timed", more, step_s))
        self._listen(Stepped("profiled", 0, step_s))
        self.send_count(step_s)
        runs = [(short, first_s), (short, short_s), (short + more, long_s)]
        return _measurement_of_runs([first_s / short, step_s], runs, self._peak_bytes)


_CLEARLY_LONGER = 1.5
"""A pilot multiplies the difference of lengths until the longer run takes this multiple of the shorter one."""
_MOST_STEPS = 1_000_000

_DEFAULT_UNIT = "samples"
_NOT_INSTALLED = "; install tcbench into the environment of the command"


def _measurement_of_runs(steps_s: Sequence[float], runs: Sequence[tuple[int, float]], peak_bytes: int) -> Measurement:
    """Return the measurement of complete runs from their step times, of which the first is not counted."""
    return Measurement(
        warmup_times_s=(),
        warmup_settled=True,
        step_times_s=tuple(steps_s),
        block_steps=max(2, len(steps_s)),
        stopped_by="budget",
        phases=(PhaseTimes(name="program", host_s=tuple(steps_s[1:])),),
        runs=tuple(runs),
        peak_memory_bytes=peak_bytes,
        peak_memory_of="process",
        prefetch_depth=0,
        **UNREPORTED,
    )


def _accepted(listening: socket.socket) -> list[_Loop]:
    """Accept a connection, unless it comes from a process of another user."""
    connection, _ = listening.accept()
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        connection.close()
        return []
    return [_Loop(connection)]


def _folder(revision: str | None) -> Path:
    """Return the folder in which the program runs: the current one, or the same folder of another revision. A revision
    is checked out once, into tcbench's cache. Raises ProgramError."""
    folder = Path.cwd()
    if revision is None:
        return folder
    parent = cache.private_folder("revisions")
    if parent is None:
        raise ProgramError(f"{cache.folder('revisions')}: must be writable by you alone; set TCBENCH_CACHE")
    try:
        repository = Repository.containing(folder)
        top = parent / revision
        if not top.exists():
            with tempfile.TemporaryDirectory(prefix="new-", dir=parent) as new:
                repository.check_out(revision, Path(new) / "top")
                (Path(new) / "top").rename(top)
    except (GitError, OSError) as error:
        raise ProgramError(f"branch at {revision[:12]}: cannot be checked out: {error}") from None
    return top / folder.resolve().relative_to(repository.top.resolve())
