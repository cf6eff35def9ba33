"""One trial that is recorded: its timeline, by Nsight Systems or from inside its process, or its Python functions."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcbench.commands.profile import host
from tcbench.core import files, recording
from tcbench.core.errors import SelectionError, TraceError
from tcbench.core.keeper import PARENT_PID
from tcbench.core.messages import Building, Message, ProfileRequest, Stepped
from tcbench.core.process import GRACE_S
from tcbench.core.record import Cell, Record
from tcbench.core.timeline import Timeline
from tcbench.engine.api import kind_of
from tcbench.run.launcher import Launcher
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Listener, Runner
from tcbench.run.worker_launch import Launch
from tcbench.tracing import nsys
from tcbench.tracing.attribution import InputWork, assemble, title_of
from tcbench.tracing.nsys import Nsys
from tcbench.tracing.threads import ThreadSampler

_TOOL_GRACE_S = 120.0
"""The time that Nsight Systems may take to write its report after the worker has ended."""

_LEAST_S = 8.0
"""The least length of a profile: py-spy needs a part of a second to attach, and samples 100 times a second."""


@dataclass(frozen=True)
class Recorder:
    """The tool that records: `nsys` around the worker, or `inside` it the device's own; else tcbench's own ranges."""

    nsys: Nsys | None = None
    inside: str | None = None
    note: str | None = None


def recorder_for(tool: str, cell: Cell) -> Recorder:
    """The recorder that --tool names. On a CPU Nsight Systems sees no more than our own ranges do, and makes steps a
    quarter longer and more, so there it is not taken unasked. Raises TcbenchError."""
    kind = kind_of(cell.device)
    if cell.ranks > 1 and tool == "nsys":
        raise SelectionError("--tool nsys: records one process; with --ranks take --tool auto")
    if kind.simulates is not None and tool != "ranges":
        if tool != "auto":
            raise SelectionError(
                f"--tool {tool} records what is there, and {cell.device} is simulated; take --tool auto"
            )
        return Recorder(inside=kind.recorder)
    if (tool == "nsys" or (tool == "auto" and kind.recorder)) and cell.ranks == 1:
        installed = nsys.find()
        if installed is not None:
            return Recorder(nsys=installed)
        if tool == "nsys":
            raise SelectionError("--tool nsys: nsys is not on PATH; install Nsight Systems, or take --tool auto")
    if tool == "cupti" and kind.recorder != tool:
        raise SelectionError(f"--tool cupti records GPUs only, and the device is {cell.device}")
    problem = kind.recorder_problem() if kind.recorder else None
    if tool == "cupti" and problem:
        raise SelectionError(f"--tool cupti: {problem}")
    if tool == "auto" and problem:
        return Recorder(note=f"ranges alone, no kernels: {problem}")
    return Recorder(inside=kind.recorder if problem is None and tool != "ranges" else None)


@dataclass(frozen=True)
class Taken:
    """A trial and what was recorded of it, rank by rank; `files` are the tool's own."""

    record: Record
    timelines: tuple[Timeline, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Take:
    """Runs the worker, records it, reads the recording. `remedy`: where a file cannot be written beside `stem`."""

    planned: PlannedCell
    recorder: Recorder
    launcher: Launcher
    timeout_s: float
    stem: Path
    remedy: str

    def run(self, listen: Listener) -> Taken:
        """One trial, whose messages go to `listen` too. KeyboardInterrupt ends worker and tool, and passes through."""
        tool = self.recorder.nsys
        sampler: ThreadSampler | None = None
        with files.scratch(Path(tempfile.gettempdir())) as folder, contextlib.ExitStack() as sampling:

            def sample(pid: int, message: Stepped) -> None:
                """Watch the worker's input threads through the profiled pass."""
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
                command=None if tool is None else self._behind(tool, launch, folder, session),
                listen=_with_profiled(sample, listen),
                grace_s=GRACE_S if tool is None else _TOOL_GRACE_S,
                launch=launch,
                launcher=self.launcher,
            )
            try:
                (record,) = runner.run([(self.planned, 0)])
            except BaseException:  # nothing of Nsight Systems' is left behind
                if tool is not None:
                    tool.end(session)
                raise
            if record.status != "ok":
                return Taken(record)
            return self._read(record, folder, sampler.work if sampler is not None else ())

    def _behind(self, tool: Nsys, launch: Launch, folder: Path, session: str) -> Callable[[int], list[str]]:
        """The worker's command line behind that of Nsight Systems, which records it."""
        traced = kind_of(self.planned.cell.device).nsys_options(tool.version)
        # The worker's parent is Nsight Systems, so it must not look for its keeper there.
        words = [*tool.command(folder / "report", session, traced), "env", "-u", PARENT_PID]
        return lambda pipe: [*words, *launch.command(pipe)]

    def _read(self, record: Record, folder: Path, work: Sequence[InputWork]) -> Taken:
        """The recording; with what Nsight Systems saw, where it recorded."""
        path, ranks = folder / "recording.json", record.cell.ranks
        names = [path] if ranks == 1 else [path.with_name(f"{path.name}.rank{rank}") for rank in range(ranks)]
        own, *others = (recording.decode(name.read_bytes()) for name in names)
        title = title_of(record)
        notes = [self.recorder.note] if self.recorder.note else []
        if own.dropped:
            notes.append(f"CUPTI lost {own.dropped} records")
        if self.recorder.nsys is None:
            source: Any = self.recorder.inside or "ranges"
            timelines = [assemble(title, own, source, work, record.cell.host_speed)]
            timelines += [assemble(title_of(record, rank), one, source) for rank, one in enumerate(others, start=1)]
            return Taken(record, tuple(timelines), notes=tuple(notes))
        try:
            timeline, files = self._from_nsys(title, own, work, folder)
        except TraceError as error:
            return Taken(record, (assemble(title, own, "ranges", work),), notes=(*notes, f"{error}; ranges alone"))
        return Taken(record, (timeline,), files, tuple(notes))

    def _from_nsys(self, title: Any, own: Any, work: Any, folder: Path) -> tuple[Timeline, tuple[Path, ...]]:
        """The timeline in the report, and the report itself, kept beside the trace."""
        report = nsys.report_of(folder / "report")
        if report is None:
            raise TraceError("Nsight Systems left no report")
        database = folder / "report.sqlite"
        nsys.to_sqlite(report, database)
        _, seen, input_work = nsys.recordings(database)[0]
        timeline = assemble(title, *nsys.with_own(seen, own, input_work, work))
        imported = nsys.report_of(folder / "report") or report
        kept = self.stem.with_name(self.stem.name + imported.suffix)
        with imported.open("rb") as source, files.replacing(kept, self.remedy) as target:
            shutil.copyfileobj(source, target)
        return timeline, (kept,)


def _with_profiled(profiled: Callable[[int, Stepped], None], listen: Listener) -> Listener:
    """A listener that before `listen` tells `profiled` the worker's process and each message of its profiled pass."""
    pid: int | None = None

    def follow(cell: Cell, trial: int, message: Message) -> None:
        nonlocal pid
        if isinstance(message, Building):
            pid = message.pid or pid
        elif isinstance(message, Stepped) and message.stage == "profiled" and pid is not None:
            profiled(pid, message)
        listen(cell, trial, message)

    return follow


def sample_host(planned: PlannedCell, timeout_s: float, stem: Path, listen: Listener) -> tuple[Record, Path | None]:
    """Run one trial whose profiled pass py-spy samples. Return its record, and the speedscope file beside `stem`; None
    where the trial failed. KeyboardInterrupt ends the worker and passes through. Raises SelectionError where py-spy
    cannot be used, and TraceError where it left nothing."""
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
