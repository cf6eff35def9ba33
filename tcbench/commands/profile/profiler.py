"""A profiled trial: its timeline, by Nsight Systems or from inside the process, or its sampled Python functions."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tcbench.commands.profile import host
from tcbench.core import files, recording
from tcbench.core.errors import SelectionError, TraceError
from tcbench.core.keeper import PARENT_PID
from tcbench.core.messages import Building, Message, ProfileRequest, Stepped
from tcbench.core.process import GRACE_S
from tcbench.core.record import Cell, Record
from tcbench.core.recording import Activity
from tcbench.core.timeline import Timeline
from tcbench.engine.api import kind_of
from tcbench.run.launcher import Launcher
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Listener, Runner
from tcbench.run.worker_launch import Launch
from tcbench.tracing import nsys
from tcbench.tracing.attribution import assemble, title_of
from tcbench.tracing.nsys import Nsys
from tcbench.tracing.threads import ThreadSampler

_TOOL_GRACE_S = 120.0
"""The time that Nsight Systems has to write its report after the worker has ended."""

_LEAST_S = 8.0
"""The least length of a sampled profile in seconds: py-spy takes a while to attach, and needs many samples."""


@dataclass(frozen=True)
class Recorder:
    """The tool that records a timeline: `nsys` around the worker, or the device's own recorder `inside` it. If both are
    None, only tcbench's own ranges are recorded. `note` says why no better tool was chosen."""

    nsys: Nsys | None = None
    inside: str | None = None
    note: str | None = None


def recorder_for(tool: str, cell: Cell) -> Recorder:
    """Return the recorder for the option --tool. "auto" prefers Nsight Systems to a GPU's own recorder.

    On a CPU, "auto" does not choose Nsight Systems: it records no more than tcbench's own ranges, and makes steps at
    least a quarter longer. Raises TcbenchError."""
    kind = kind_of(cell.device)
    if cell.ranks > 1 and tool == "nsys":
        raise SelectionError("--tool nsys records one process; with --ranks, use --tool auto")
    if kind.simulates is not None and tool != "ranges":
        if tool != "auto":
            raise SelectionError(f"--tool {tool} needs real hardware, and {cell.device} is simulated; use --tool auto")
        return Recorder(inside=kind.recorder)
    if (tool == "nsys" or (tool == "auto" and kind.recorder)) and cell.ranks == 1:
        installed = nsys.find()
        if installed is not None:
            return Recorder(nsys=installed)
        if tool == "nsys":
            raise SelectionError("--tool nsys: nsys is not on PATH; install Nsight Systems, or use --tool auto")
    if tool == "cupti" and kind.recorder != tool:
        raise SelectionError(f"--tool cupti records GPUs only, and the device is {cell.device}")
    problem = kind.recorder_problem() if kind.recorder else None
    if tool == "cupti" and problem:
        raise SelectionError(f"--tool cupti: {problem}")
    if tool == "auto" and problem:
        return Recorder(note=f"only ranges, no kernels: {problem}")
    return Recorder(inside=kind.recorder if problem is None and tool != "ranges" else None)


@dataclass(frozen=True)
class Profile:
    """A trial's record and its timelines, one per rank. `files` are reports of the recording tool."""

    record: Record
    timelines: tuple[Timeline, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProfiledTrial:
    """A trial to run and record. Files are named after `stem`; `remedy` is the advice if one cannot be written."""

    planned: PlannedCell
    recorder: Recorder
    launcher: Launcher
    timeout_s: float
    stem: Path
    remedy: str

    def run(self, listen: Listener) -> Profile:
        """Run the trial and read its recording. `listen` receives the worker's messages. A KeyboardInterrupt ends
        worker and tool, and is raised again."""
        tool = self.recorder.nsys
        sampler: ThreadSampler | None = None
        with files.scratch(Path(tempfile.gettempdir())) as folder, contextlib.ExitStack() as sampling:

            def sample(pid: int, message: Stepped) -> None:
                """Start sampling the worker's threads when its profiled pass begins, and stop when it ends."""
                nonlocal sampler
                if sampler is not None:
                    sampler.stop()
                elif message.steps == 0:
                    sampler = sampling.enter_context(ThreadSampler(pid))

            session = f"tcbench-{os.getpid()}"
            request = ProfileRequest(str(folder / "recording.json"), self.recorder.inside is not None)
            launch = Launch(request=request)
            runner = Runner(
                self.stem.name,
                self.timeout_s,
                command=None if tool is None else self._nsys_command(tool, launch, folder, session),
                listen=_with_profiled(sample, listen),
                grace_s=GRACE_S if tool is None else _TOOL_GRACE_S,
                launch=launch,
                launcher=self.launcher,
            )
            try:
                (record,) = runner.run([(self.planned, 0)])
            except BaseException:  # leave no process of Nsight Systems behind
                if tool is not None:
                    tool.end(session)
                raise
            if record.status != "ok":
                return Profile(record)
            return self._read(record, folder, sampler.work if sampler is not None else ())

    def _nsys_command(self, tool: Nsys, launch: Launch, folder: Path, session: str) -> Callable[[int], list[str]]:
        """Return a function from the worker's message descriptor to the command line of Nsight Systems around it."""
        traced = kind_of(self.planned.cell.device).nsys_options(tool.version)
        # The worker's parent is Nsight Systems, so hide the parent id by which it would look for its keeper.
        words = [*tool.command(folder / "report", session, traced), "env", "-u", PARENT_PID]
        return lambda pipe: [*words, *launch.command(pipe)]

    def _read(self, record: Record, folder: Path, work: Sequence[Activity]) -> Profile:
        """Return the profile of a successful trial, read from `folder`: the recordings of all ranks, or the report of
        Nsight Systems. If that report cannot be read, the timeline has only tcbench's own ranges, and a note says why.

        `work` are the activities of the worker's input threads."""
        path, ranks = folder / "recording.json", record.cell.ranks
        names = [path] if ranks == 1 else [path.with_name(f"{path.name}.rank{rank}") for rank in range(ranks)]
        first, *rest = (recording.decode(name.read_bytes()) for name in names)
        first = msgspec.structs.replace(first, activities=(*first.activities, *work))
        title = title_of(record)
        notes = [self.recorder.note] if self.recorder.note else []
        if first.dropped:
            notes.append(f"CUPTI lost {first.dropped} records")
        if self.recorder.nsys is None:
            source: Any = self.recorder.inside or "ranges"
            timelines = [assemble(title, first, source, record.cell.host_speed)]
            timelines += [assemble(title_of(record, rank), ranges, source) for rank, ranges in enumerate(rest, start=1)]
            return Profile(record, tuple(timelines), notes=tuple(notes))
        try:
            timeline, files = self._from_nsys(title, first, folder)
        except TraceError as error:
            return Profile(record, (assemble(title, first, "ranges"),), notes=(*notes, f"{error}; only ranges"))
        return Profile(record, (timeline,), files, tuple(notes))

    def _from_nsys(self, title: Any, ranges: Any, folder: Path) -> tuple[Timeline, tuple[Path, ...]]:
        """Return the timeline in Nsight Systems' report, merged with tcbench's ranges, and the copied report.

        The copy is named after `stem`. Raises TraceError if there is no report."""
        report = nsys.report_of(folder / "report")
        if report is None:
            raise TraceError("Nsight Systems left no report")
        database = folder / "report.sqlite"
        nsys.to_sqlite(report, database)
        _, reported = nsys.recordings(database)[0]
        timeline = assemble(title, nsys.merge_recordings(reported, ranges), "nsys")
        imported = nsys.report_of(folder / "report") or report  # `to_sqlite` may have converted it
        copy = self.stem.with_name(self.stem.name + imported.suffix)
        with imported.open("rb") as source, files.replacing(copy, self.remedy) as target:
            shutil.copyfileobj(source, target)
        return timeline, (copy,)


def _with_profiled(profiled: Callable[[int, Stepped], None], listen: Listener) -> Listener:
    """Return a listener that passes every message on to `listen`.

    For each message of the profiled pass, it first calls `profiled` with the worker's process id and the message."""
    pid: int | None = None

    def follow(cell: Cell, trial: int, message: Message) -> None:
        """Store the worker's process id, call `profiled` for messages of the profiled pass, and pass the message on."""
        nonlocal pid
        if isinstance(message, Building):
            pid = message.pid or pid
        elif isinstance(message, Stepped) and message.stage == "profiled" and pid is not None:
            profiled(pid, message)
        listen(cell, trial, message)

    return follow


def sample_host(planned: PlannedCell, timeout_s: float, stem: Path, listen: Listener) -> tuple[Record, Path | None]:
    """Run one trial whose profiled pass py-spy samples.

    Return its record and the speedscope file, or None instead of the file if the trial failed. A KeyboardInterrupt ends
    the worker and is raised again. Raises SelectionError if py-spy cannot be used, and TraceError without samples."""
    py_spy = host.find()
    problem = host.problem(py_spy) if py_spy else "py-spy is not installed: uv sync --extra host"
    if py_spy is None or problem is not None:
        raise SelectionError(f"--host: {problem}")
    with files.scratch(Path(tempfile.gettempdir())) as folder:
        request = ProfileRequest(str(folder / "recording.json"), layers=False, least_s=_LEAST_S)
        samples, sampler = folder / "samples.json", None

        def sample(pid: int, _: Stepped) -> None:
            nonlocal sampler
            sampler = sampler or host.PySpy(py_spy, pid, samples)

        runner = Runner("profile", timeout_s, listen=_with_profiled(sample, listen), launch=Launch(request=request))
        (record,) = runner.run([(planned, 0)])
        if record.status != "ok":
            return record, None
        if sampler is None:
            raise TraceError("py-spy took no sample: the profiled pass did not begin")
        sampler.wait()
        file = stem.with_name(stem.name + host.SUFFIX)
        files.write(file, samples.read_bytes(), files.ANOTHER_FOLDER)
        return record, file
