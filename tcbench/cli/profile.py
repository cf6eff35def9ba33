"""`tcbench profile`: one cell, and when everything in its steps ran."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tcbench.cli.app import INTERRUPTED, OUT, SOME_CELL_FAILED, command
from tcbench.cli.options import (
    ANOTHER_FOLDER,
    HOW,
    WHAT,
    WHERE,
    DataOption,
    DeviceOption,
    HostSpeedOption,
    ImageSizeOption,
    ScenarioArgument,
    ThreadsOption,
    batch_sizes,
    complete_config,
    complete_model,
    config_names,
    images,
    model_names,
    within_speed,
)
from tcbench.core import files
from tcbench.core.errors import SelectionError, TcbenchError, TraceError

if TYPE_CHECKING:
    from tcbench.core.messages import Message
    from tcbench.core.record import Cell, Record
    from tcbench.core.timeline import Timeline
    from tcbench.run.launcher import Launcher
    from tcbench.run.plan import Plan, PlannedCell
    from tcbench.run.runner import Launch
    from tcbench.tracing.nsys import Nsys
    from tcbench.tracing.threads import ThreadSampler

Tool = Literal["auto", "nsys", "cupti", "ranges", "py-spy", "cprofile"]

_TIMED_S = 5.0
"""Budget of the timed pass that comes before the profiled one: enough to be steady."""

_TOOL_GRACE_S = 120.0
"""The time that Nsight Systems may take to write its report after the worker has ended."""


@command(
    "Record one cell's timeline: a trace, a picture, a summary.",
    """
tcbench profile fp16+dali --bs 8                   what holds it back, and the picture that shows it
tcbench profile fp16 --bs 64 --device cuda:0       with Nsight Systems where nsys is on PATH, else with CUPTI
tcbench profile fp32 --bs 4 --tool ranges -n 10    without any tool
tcbench profile fp32 --bs 8 --host                 the host's functions: a flame graph, a table
""",
)
def profile(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CELL",
            help="A config's name, or rungs joined by '+'; its batch size is --bs.",
            autocompletion=complete_config,
        ),
    ],
    scenario: ScenarioArgument = None,
    bs: Annotated[
        str | None,
        typer.Option("--bs", metavar="N", help="Batch size. Default: the scenario's first.", rich_help_panel=WHAT),
    ] = None,
    device: DeviceOption = "auto",
    data: DataOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A network, such as resnet18 (`tcbench list` shows all). Default: the scenario's.",
            autocompletion=complete_model,
            rich_help_panel=WHAT,
        ),
    ] = None,
    image_size: ImageSizeOption = None,
    ranks: Annotated[
        int,
        typer.Option(
            "--ranks",
            metavar="N",
            min=1,
            max=999_999,
            help="So many processes that train together, by mpirun on this machine: a timeline of each.",
            rich_help_panel=WHAT,
        ),
    ] = 1,
    steps: Annotated[
        int,
        typer.Option("--steps", "-n", metavar="N", min=1, max=10_000, help="Steps to record.", rich_help_panel=HOW),
    ] = 5,
    tool: Annotated[
        Tool,
        typer.Option(
            metavar="TOOL",
            help="nsys (Nsight Systems), cupti (a GPU's), ranges (tcbench's own) or auto: the first that can be used; "
            "with --host py-spy, cprofile or auto.",
            rich_help_panel=HOW,
        ),
    ] = "auto",
    host: Annotated[
        bool,
        typer.Option(
            "--host", help="The host's Python functions instead of a timeline, for some seconds.", rich_help_panel=HOW
        ),
    ] = False,
    threads: ThreadsOption = None,
    host_speed: HostSpeedOption = 1.0,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Files go to FOLDER/MACHINE/.", rich_help_panel=WHERE)
    ] = OUT,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=WHERE)] = False,
) -> None:
    """Run one cell, record a few of its steady steps, and say what holds it back. Leaves a trace that Perfetto
    (ui.perfetto.dev) opens and that holds the trial's record, a picture, and a summary. With --host: in which Python
    functions each phase spends its time, as a table, a flame graph and a file for www.speedscope.app.

    Exit code: 0; 2 for a mistake in the command; 3 when the cell did not run to its end; 130 when interrupted.
    """
    from tcbench.show.console import make_console
    from tcbench.tracing import perfetto

    plan, planned = _planned(config, scenario, bs, device, model, data, image_size, steps, threads, host_speed, ranks)
    stderr, stdout = make_console(stderr=True), make_console()
    if host:
        _host(plan, planned, tool, out, stderr, stdout, quiet)
        return
    recorder, launcher = _recorder(tool, planned.cell), _launcher(plan)
    _prepare_input(plan, stderr, quiet)
    stem = _stem(out / plan.device.machine, planned.cell)
    try:
        taken = _Take(planned, recorder, launcher, plan.timeout_s, stem).run(stderr, quiet)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; nothing was kept", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if not taken.timelines:
        raise _Failed(f"{planned.cell.label}: {taken.record.status}: {taken.record.reason}")

    trace = stem.with_name(stem.name + ".json.gz")
    perfetto.write(taken.timelines, trace, taken.record)
    left = [trace, *_picture(taken.timelines, stem.with_name(stem.name + ".png"))]
    summary = "\n".join(map(_summary, taken.timelines))
    text = stem.with_name(stem.name + ".txt")
    files.write(text, f"{summary}\n".encode(), ANOTHER_FOLDER)
    left += [text, *taken.files]
    for line in taken.notes:
        stderr.print(f"note: {line}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    for line in (summary, "", *(f"wrote {path}" for path in left), f"Next: {_next_step(taken.timelines[0], trace)}"):
        stdout.print(line, markup=False, highlight=False, soft_wrap=True)


def _host(plan: Plan, planned: PlannedCell, tool: Tool, out: Path, stderr: Any, stdout: Any, quiet: bool) -> None:
    """The profile of the host's functions."""
    from tcbench.cli import host_profiles
    from tcbench.show import host_profile as view

    if planned.cell.host_speed != 1:
        raise SelectionError("--host looks at this host as it is; leave --host-speed out")
    if planned.cell.ranks > 1:
        raise SelectionError("--host looks at one process; leave --ranks out")
    chosen, note = host_profiles.tool_for(tool)
    _prepare_input(plan, stderr, quiet)
    stem = _stem(out / plan.device.machine, planned.cell, "host")
    try:
        record, taken = host_profiles.take(plan, planned, chosen, stderr, quiet)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; nothing was kept", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if taken is None:
        raise _Failed(f"{planned.cell.label}: {record.status}: {record.reason}")
    left = host_profiles.keep(taken, stem)
    if note:
        stderr.print(f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    stdout.print(view.table(taken))
    for line in ("", view.overhead(taken), *(f"wrote {path}" for path in left), _after_host(out)):
        stdout.print(line, markup=False, highlight=False, soft_wrap=True)


def _after_host(out: Path) -> str:
    """One line: what to do with a profile of the host; `tcbench explain` takes a run."""
    import shlex

    from tcbench.cli.results import newest

    try:
        newest(out)
    except SelectionError:
        return "www.speedscope.app opens the file"
    explain = shlex.join(["tcbench", "explain", *(["--out", str(out)] if out != OUT else [])])
    return f"Next: {explain}   (names the costliest function beside the verdict; www.speedscope.app opens the file)"


class _Failed(TcbenchError):
    """The cell did not run to its end."""

    exit_code = SOME_CELL_FAILED


def _planned(
    config: str,
    scenario: str | None,
    bs: str | None,
    device: str,
    model: str | None,
    data: str | None,
    image_size: int | None,
    steps: int,
    threads: int | None,
    host_speed: float,
    ranks: int,
) -> tuple[Plan, PlannedCell]:
    """The one cell. Raises TcbenchError for none, for several, and for one that cannot run here."""
    import msgspec

    from tcbench.engine.accelerators import device as devices
    from tcbench.engine.backends import device_kinds
    from tcbench.run import plan
    from tcbench.run import scenario as scenarios

    target = devices.find(device, device_kinds())
    loaded = scenarios.load(scenario or ("cpu" if target.kind == "cpu" else "naruse2018"))
    sizes = batch_sizes(bs) or loaded.batch_sizes[:1]
    selection = plan.Selection(
        batch_sizes=sizes,
        models=model_names(model),
        ranks=(ranks,),
        configs=config_names([config]),
        input=images(data),
        image_size=image_size,
        max_time_s=_TIMED_S,
        threads=threads,
        host_speed=within_speed(host_speed),
    )
    made = plan.make(loaded, selection, target)
    if len(made.cells) != 1:
        models = {planned.cell.model for planned in made.cells}
        named = "; ".join(
            f"{planned.cell.model}: {planned.cell.label}" if len(models) > 1 else planned.cell.label
            for planned in made.cells[:3]
        )
        more = "; ..." if len(made.cells) > 3 else ""
        raise SelectionError(f"profile takes one cell, this names {len(made.cells)}: {named}{more}")
    (planned,) = made.cells
    if planned.skip_reason is not None:
        raise SelectionError(f"{planned.cell.label} cannot run here: {planned.skip_reason}")
    measure = msgspec.structs.replace(planned.cell.measure, profiled_steps=steps)
    return made, plan.PlannedCell(msgspec.structs.replace(planned.cell, measure=measure))


def _launcher(plan: Plan) -> Launcher:
    """mpirun, where there are ranks to start: their recordings are read here, so that they run here. Raises
    SelectionError."""
    from tcbench.cli.run import probe, with_launcher

    [cell] = [planned.cell for planned in plan.cells]
    _, launcher = with_launcher(plan, "mpirun" if cell.ranks > 1 else None, asked=True)
    probe(launcher, [cell])
    return launcher


@dataclass(frozen=True)
class _Recorder:
    """The tool that records: `nsys` around the worker, or `inside` it the device's own (`DeviceKind.recorder`); else
    tcbench's own ranges."""

    nsys: Nsys | None = None
    inside: str | None = None
    note: str | None = None


def _recorder(tool: Tool, cell: Cell) -> _Recorder:
    """The recorder that --tool names. Raises TcbenchError."""
    from tcbench.engine.accelerators.device import kind_of
    from tcbench.tracing import nsys

    kind = kind_of(cell.device)
    if cell.ranks > 1 and tool == "nsys":
        raise SelectionError("--tool nsys: records one process; with --ranks take --tool auto")
    if kind.simulates is not None and tool != "ranges":
        if tool != "auto":
            raise SelectionError(
                f"--tool {tool} records what is there, and {cell.device} is simulated; take --tool auto"
            )
        return _Recorder(inside=kind.recorder)
    if tool in ("py-spy", "cprofile"):
        raise SelectionError(f"--tool {tool} looks at the host's functions: add --host")
    if tool in ("auto", "nsys") and cell.ranks == 1:
        installed = nsys.find()
        if installed is not None:
            return _Recorder(nsys=installed)
        if tool == "nsys":
            raise SelectionError("--tool nsys: nsys is not on PATH; install Nsight Systems, or take --tool auto")
    if tool == "cupti" and kind.recorder != tool:
        raise SelectionError(f"--tool cupti records GPUs only, and the device is {cell.device}")
    problem = kind.recorder_problem() if kind.recorder else None
    if tool == "cupti" and problem:
        raise SelectionError(f"--tool cupti: {problem}")
    if tool == "auto" and problem:
        return _Recorder(note=f"ranges alone, no kernels: {problem}")
    return _Recorder(inside=kind.recorder if problem is None and tool != "ranges" else None)


@dataclass(frozen=True)
class _Taken:
    """A trial and what was recorded of it, rank by rank; `files` are the tool's own."""

    record: Record
    timelines: tuple[Timeline, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Take:
    """Runs the worker, records it, reads what was recorded."""

    planned: PlannedCell
    recorder: _Recorder
    launcher: Launcher
    timeout_s: float
    stem: Path

    def run(self, stderr: Any, quiet: bool) -> _Taken:
        """One trial. KeyboardInterrupt ends the worker and the tool and passes through."""
        from tcbench.analysis.eta import estimate
        from tcbench.core.messages import ProfileRequest
        from tcbench.core.process import GRACE_S
        from tcbench.run.runner import Launch, Runner
        from tcbench.show.progress import RunProgress

        nsys = self.recorder.nsys
        with files.scratch(Path(tempfile.gettempdir())) as folder, _Sampling() as sampling:
            session = f"tcbench-{os.getpid()}"
            with RunProgress(stderr, estimate([self.planned.cell]), 1, quiet) as progress, self._session(session):

                def listen(cell: Cell, trial: int, message: Message) -> None:
                    sampling.listen(message)
                    progress.listen(cell, trial, message)

                request = ProfileRequest(str(folder / "recording.json"), self.recorder.inside is not None)
                launch = Launch(request=request)
                runner = Runner(
                    self.stem.name,
                    self.timeout_s,
                    command=None if nsys is None else self._behind(nsys, launch, folder, session),
                    listen=listen,
                    grace_s=GRACE_S if nsys is None else _TOOL_GRACE_S,
                    launch=launch,
                    launcher=self.launcher,
                )
                (record,) = runner.run([(self.planned, 0)])
            if record.status != "ok":
                return _Taken(record)
            return self._read(record, folder, sampling)

    def _behind(self, nsys: Nsys, launch: Launch, folder: Path, session: str) -> Callable[[int], list[str]]:
        """The worker's command line behind that of Nsight Systems, which records it."""
        from tcbench.core.messages import RUNNER_PID
        from tcbench.engine.accelerators.device import kind_of

        traced = kind_of(self.planned.cell.device).nsys_options(nsys.version)
        # The worker's parent is Nsight Systems, so it must not look for its keeper there.
        words = [*nsys.command(folder / "report", session, traced), "env", "-u", RUNNER_PID]
        return lambda pipe: [*words, *launch.command(pipe)]

    @contextlib.contextmanager
    def _session(self, session: str) -> Iterator[None]:
        """Nothing of Nsight Systems' is left behind."""
        try:
            yield
        except BaseException:
            if self.recorder.nsys is not None:
                self.recorder.nsys.end(session)
            raise

    def _read(self, record: Record, folder: Path, sampling: _Sampling) -> _Taken:
        """The recording; with what Nsight Systems saw, where it recorded."""
        from tcbench.core import recording as recordings
        from tcbench.tracing.attribution import assemble
        from tcbench.tracing.ranges import title_of

        path, ranks = folder / "recording.json", record.cell.ranks
        names = [path] if ranks == 1 else [path.with_name(f"{path.name}.rank{rank}") for rank in range(ranks)]
        own, *others = (recordings.decode(name.read_bytes()) for name in names)
        title, work = title_of(record), sampling.work
        notes = [self.recorder.note] if self.recorder.note else []
        if own.dropped:
            notes.append(f"CUPTI lost {own.dropped} records")
        if self.recorder.nsys is None:
            source: Any = self.recorder.inside or "ranges"
            timelines = [assemble(title, own, source, work, record.cell.host_speed)]
            timelines += [assemble(title_of(record, rank), one, source) for rank, one in enumerate(others, start=1)]
            return _Taken(record, tuple(timelines), notes=tuple(notes))
        try:
            timeline, files = self._from_nsys(title, own, work, folder)
        except TraceError as error:
            return _Taken(record, (assemble(title, own, "ranges", work),), notes=(*notes, f"{error}; ranges alone"))
        return _Taken(record, (timeline,), files, tuple(notes))

    def _from_nsys(self, title: Any, own: Any, work: Any, folder: Path) -> tuple[Timeline, tuple[Path, ...]]:
        """The timeline in the report, and the report itself, kept beside the trace."""
        from tcbench.tracing import nsys
        from tcbench.tracing.attribution import assemble

        report = nsys.report_of(folder / "report")
        if report is None:
            raise TraceError("Nsight Systems left no report")
        database = folder / "report.sqlite"
        nsys.to_sqlite(report, database)
        recorded = nsys.recordings(database)
        (_, seen, input_work) = recorded[0]
        timeline = assemble(title, *nsys.with_own(seen, own, input_work, work))
        imported = nsys.report_of(folder / "report") or report
        kept = self.stem.with_name(self.stem.name + imported.suffix)
        with imported.open("rb") as source, files.replacing(kept, ANOTHER_FOLDER) as target:
            shutil.copyfileobj(source, target)
        return timeline, (kept,)


class _Sampling:
    """Watches the worker's input threads through the profiled pass, as its messages tell of it."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._sampler: ThreadSampler | None = None

    def __enter__(self) -> _Sampling:
        return self

    def __exit__(self, *error: object) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def listen(self, message: Message) -> None:
        from tcbench.core.messages import Building, Stepped
        from tcbench.tracing.threads import ThreadSampler

        if isinstance(message, Building):
            self._pid = message.pid or self._pid
        elif isinstance(message, Stepped) and message.stage == "profiled":
            if self._sampler is not None:
                self._sampler.stop()
            elif message.steps == 0 and self._pid is not None:
                self._sampler = ThreadSampler(self._pid)
                self._sampler.__enter__()

    @property
    def work(self) -> Sequence[Any]:
        """The times at which the input's threads worked (`tcbench.tracing.attribution.Work`)."""
        return self._sampler.work if self._sampler is not None else ()


def _prepare_input(plan: Plan, stderr: Any, quiet: bool) -> None:
    from tcbench.cli import run

    run.check_folder(plan)
    run.generate_input(plan, stderr, quiet)


def _stem(folder: Path, cell: Cell, what: str = "profile") -> Path:
    """The name of this profile's files, without suffix: the cell, and when (UTC). Makes the folder."""
    ranks = f"-ranks{cell.ranks}" if cell.ranks > 1 else ""
    name = re.sub(r"[^\w.+-]", "_", f"{what}-{cell.config}-bs{cell.batch_size}{ranks}-{cell.device}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder}: cannot be made ({error.strerror}); name another folder with --out") from None
    return folder / f"{name}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"


def _picture(timelines: Sequence[Timeline], path: Path) -> list[Path]:
    """The picture; none, with a note, where it cannot be drawn."""
    from tcbench.show.charts import timeline as pictures

    try:
        pictures.draw(timelines, path)
    except TcbenchError as error:
        typer.echo(f"note: no picture: {error}", err=True)
        return []
    return [path]


def _summary(timeline: Timeline) -> str:
    from tcbench.analysis import bottleneck

    return f"{timeline.label} on {timeline.device_name}: {bottleneck.summarise(timeline).sentence}"


def _next_step(timeline: Timeline, trace: Path) -> str:
    """One line: the first recorded step from near."""
    import shlex

    end_ms = max(1, round((timeline.steps[0].end_s - timeline.begin_s) * 1e3)) if timeline.steps else 1
    return (
        f"tcbench timeline {shlex.quote(str(trace))} --zoom 0:{end_ms} -o zoomed.png   (ui.perfetto.dev opens it too)"
    )
