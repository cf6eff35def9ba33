"""The command line: parse, call, print, exit code. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from tcbench import __version__
from tcbench.errors import SelectionError, TcbenchError

if TYPE_CHECKING:
    from tcbench.analysis.summary import CellSummary
    from tcbench.plan import Plan, Selection
    from tcbench.record import Input, Record

INTERRUPTED = 130
SOME_CELL_FAILED = 3
INTERNAL_ERROR = 70

OUT = Path("results")


class GroupedCommand(TyperCommand):
    """Help with its options grouped by `rich_help_panel`, without importing Rich: that alone would take 0.3 s."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(row)
        if "Options" in groups:
            groups["Options"] = groups.pop("Options")
        for name, rows in groups.items():
            with formatter.section(name):
                formatter.write_dl(rows)


app = typer.Typer(
    name="tcbench",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: tcbench run",
)
data_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Make the images a run reads.")
app.add_typer(data_app, name="data")


def _command(
    short: str, epilog: str = "", name: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    # \b keeps the lines of the examples as they are.
    text = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in epilog.strip().splitlines()) if epilog else None
    return app.command(name, cls=GroupedCommand, short_help=short, epilog=text)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tcbench {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works after any command too.")] = False,
) -> None:
    """Benchmark and profile ResNet-50 training on Tensor Cores, one optimisation at a time."""


def _complete_scenario(incomplete: str) -> list[str]:
    from tcbench.scenario import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


def _complete_config(incomplete: str) -> list[str]:
    from tcbench.scenario import load, shipped

    names = dict.fromkeys(config.name for name in shipped() for config in load(name).configs)
    return [name for name in names if name.startswith(incomplete)]


def _complete_device(incomplete: str) -> list[str]:
    from tcbench.backends.cuda.driver import gpus

    return [n for n in ("auto", "cpu", *(f"cuda:{gpu.index}" for gpu in gpus().found)) if n.startswith(incomplete)]


_WHAT, _HOW, _WHERE = "What to run", "How to measure", "Where it goes and what is shown"

ScenarioArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario's name or the path of a TOML file. Default: cpu where the device is the CPU.",
        autocompletion=_complete_scenario,
    ),
]


@_command(
    "Run a scenario; keep records and a chart.",
    """
tcbench run                                        the whole ladder on the best device here
tcbench run --bs 32,64,128,256 --config 'fp16*'    the fp16 half at the talk's batch sizes
tcbench run --config fp32 --config fp16+dali --bs 8 --trials 5
tcbench run naruse2018 --data /data/imagenet/train --bs 32
tcbench run --resume                               the same command again, after an interrupt: only what is missing
""",
)
def run(
    scenario: ScenarioArgument = None,
    bs: Annotated[
        str | None, typer.Option("--bs", metavar="N,N,...", help="Batch sizes.", rich_help_panel=_WHAT)
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="NAME",
            help="Configs by name or glob, or rungs joined by '+'. May be given more than once, or with commas.",
            autocompletion=_complete_config,
            rich_help_panel=_WHAT,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE", help="auto, cpu or cuda:N.", autocompletion=_complete_device, rich_help_panel=_WHAT
        ),
    ] = "auto",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="A folder of class folders of JPEGs, or 'synthetic': one batch kept in memory. "
            "Default: JPEGs generated once.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Side of the square images.", rich_help_panel=_WHAT)
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=1_000_000, help="Trials per cell, each a process of its own.", rich_help_panel=_HOW
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="A cell is done when the 95% interval's half-width is this share of the mean, e.g. 0.02.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    max_time: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="...or when this much is spent on its timed steps.", rich_help_panel=_HOW),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="A trial that takes longer is ended.", rich_help_panel=_HOW),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**32 - 1, help="Of weights and input.", rich_help_panel=_HOW)
    ] = 0,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Threads for BLAS, ops and input. Default: all usable cores.", rich_help_panel=_HOW
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Records go to FOLDER/MACHINE/.", rich_help_panel=_WHERE)
    ] = OUT,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Add to the newest run of this scenario what is missing from it.", rich_help_panel=_WHERE
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, and stop.", rich_help_panel=_WHERE)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=_WHERE)] = False,
    json: Annotated[bool, typer.Option("--json", help="Results as JSON.", rich_help_panel=_WHERE)] = False,
) -> None:
    """Run a scenario's configs at its batch sizes; print a table, keep records and a chart.

    Exit code: 0 when every cell is ok, skipped or out of memory; 2 for a mistake in the command or the scenario; 3
    when some cell failed; 130 when interrupted.
    """
    from tcbench import machine
    from tcbench.plan import Selection

    selection = Selection(
        batch_sizes=_batch_sizes(bs),
        configs=_names(config),
        input=_input(data),
        image_size=image_size,
        trials=trials,
        target=_within("--target", target, "a share between 0 and 1, such as 0.02", lambda x: 0 < x < 1),
        max_time_s=_within("--max-time", max_time, "seconds above 0", lambda x: 0 < x <= 1e9),
        timeout_s=_within("--timeout", timeout, "seconds above 0", lambda x: 0 < x <= 1e6),
        seed=seed,
        threads=threads or machine.usable_cpus(),
    )
    plan = _plan(scenario, selection, device)
    _check_folder(plan)
    if dry_run:
        _show_plan(plan, json)
        return
    failed = _run(plan, out, resume, quiet, json)
    if failed:
        raise typer.Exit(SOME_CELL_FAILED)


def _plan(scenario: str | None, selection: Selection, device: str) -> Plan:
    from tcbench import device as devices
    from tcbench import plan
    from tcbench import scenario as scenarios
    from tcbench.backends import device_kinds

    found = devices.find(device, device_kinds())
    name = scenario or ("cpu" if found.kind == "cpu" else "naruse2018")
    return plan.make(scenarios.load(name), selection, found)


def _show_plan(plan: Plan, json: bool) -> None:
    from tcbench.views import console

    if json:
        typer.echo(console.plan_json(plan))
        return
    out = console.make_console()
    out.print(console.plan_line(plan), markup=False, highlight=False, soft_wrap=True)
    out.print(console.plan_table(plan))


def _run(plan: Plan, out: Path, resume: bool, quiet: bool, json: bool) -> bool:
    """Run a plan to its end, store and show it. True when some cell failed."""
    from tcbench import store
    from tcbench.analysis.eta import estimate
    from tcbench.runner import Runner
    from tcbench.views import console
    from tcbench.views.progress import RunProgress

    stderr = console.make_console(stderr=True)

    def say(line: str) -> None:
        if not quiet:
            stderr.print(line, markup=False, highlight=False, soft_wrap=True)

    resumed = store.latest(out, plan.device.machine, plan.scenario.name) if resume else None
    before = store.read([resumed]).records if resumed else ()
    path = resumed or store.new_path(out, plan.device.machine, plan.scenario.name)
    done = store.done(before)
    # A cell that was skipped then and can run now is missing.
    trials = [
        (planned, trial)
        for planned, trial in plan.trials_in_order()
        if done.get((planned.cell.key, trial)) not in (("ok", "oom") if planned.skip_reason is None else ("skipped",))
    ]
    fresh: list[Record] = []
    try:
        with store.Store(path) as records:
            _generate_input(plan, stderr, quiet)
            say(console.plan_line(plan))
            if resume:
                say(f"resuming {path}: {len(before)} records are there" if resumed else "nothing to resume: a new run")
            if not trials:
                say("nothing is missing")
            cells = [planned.cell for planned, _ in trials if planned.skip_reason is None]
            with RunProgress(stderr, estimate(cells), len(trials), quiet) as progress:
                for record in Runner(path.stem, plan.timeout_s, listen=progress.listen).run(trials):
                    records.append(record)
                    fresh.append(record)
                    progress.finished(record)
    except KeyboardInterrupt:
        stored = len(before) + len(fresh)
        where = f"{stored} records are in {path}" if stored else "nothing was measured yet"
        typer.echo(f"\ninterrupted; {where}; go on with: {_command_again(resume=bool(stored))}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if not before and not fresh:
            path.unlink(missing_ok=True)

    wanted = {planned.cell.key for planned in plan.cells}
    found = [record for record in store.current([*before, *fresh]) if record.cell.key in wanted]
    failed = any(record.status in ("failed", "timeout", "crashed") for record in found)
    _show_results(found, path, failed, json)
    return failed


def _show_results(found: Sequence[Record], path: Path, failed: bool, json: bool) -> None:
    """The table or its JSON, the chart, what to do next."""
    from tcbench.analysis.summary import speedups, summarise
    from tcbench.views import console

    summaries = summarise(found)
    ratios = speedups(summaries)
    chart = _chart(summaries, path)
    if json:
        typer.echo(console.summary_json(path.stem, path, summaries, ratios))
        return
    stdout = console.make_console()

    def say(line: str, style: str = "") -> None:
        stdout.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    stdout.print()
    stdout.print(console.results_table(summaries, ratios))
    stdout.print()
    for line in console.reasons(summaries):
        say(line, "yellow")
    for line in console.footnotes(summaries):
        say(line, "dim")
    say(f"{console.tally(summaries)}. Records: {path}")
    if chart:
        say(f"Chart: {chart}")
    say(_next_step(summaries, path, failed))


def _check_folder(plan: Plan) -> None:
    """Look at the user's images before any worker needs them, so that a bad folder is an error and not failed cells."""
    from tcbench import dataset
    from tcbench.errors import DataError

    cell = plan.cells[0].cell
    if cell.input.kind == "folder" and cell.input.path is not None:
        found = dataset.scan(Path(cell.input.path))
        n_classes = len(found.classes)
    else:
        n_classes = dataset.N_CLASSES if cell.input.kind == "generated" else 0
    if n_classes > cell.n_classes:
        raise DataError(
            f"the images have {n_classes} classes, the scenario's model {cell.n_classes}: "
            f"expected model.classes of at least {n_classes} in {plan.scenario.path}"
        )


def _generate_input(plan: Plan, console: Any, quiet: bool) -> None:
    """Make the default images before any worker needs them."""
    from tcbench import dataset
    from tcbench.views.progress import counting

    if any(p.cell.input.kind == "generated" and p.skip_reason is None for p in plan.cells):
        with counting(console, "generating JPEGs, once", quiet) as advance:
            dataset.ensure_generated(advance)


def _chart(summaries: Sequence[CellSummary], records: Path) -> Path | None:
    """The throughput chart beside the records; None when nothing was measured."""
    if not any(summary.images_per_s for summary in summaries):
        return None
    from tcbench.views import plots

    path = records.with_suffix(".png")
    try:
        plots.save(_throughput(summaries), path)
    except TcbenchError as error:
        typer.echo(f"note: no chart: {error}", err=True)
        return None
    return path


def _next_step(summaries: Sequence[CellSummary], path: Path, failed: bool) -> str:
    """One line: the most useful thing to do with these results."""
    import shlex

    from tcbench.analysis.ladder import climbs

    if failed:
        return f"Next: {_command_again(resume=True)}   (runs again what failed; its log is in the record)"
    if climbs(summaries):
        return f"Next: tcbench plot {shlex.quote(str(path))} --kind ladder -o ladder.png   (what each rung buys)"
    return "Next: tcbench run --config 'fp32*'   (a whole ladder; tcbench list shows all configs)"


def _throughput(summaries: Sequence[CellSummary]) -> Any:
    from tcbench.views import plots

    scenarios = ", ".join(dict.fromkeys(summary.cell.scenario for summary in summaries))
    return plots.throughput_chart(summaries, title="Training throughput", subtitle=f"Scenario {scenarios}")


def _command_again(*, resume: bool) -> str:
    """The command that was given, to be given again."""
    import shlex

    words = [word for word in sys.argv[1:] if word not in ("--resume", "--debug")]
    return shlex.join(["tcbench", *words, *(["--resume"] if resume else [])])


def _batch_sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    sizes = []
    for word in text.split(","):
        if not re.fullmatch(r"\s*0*[1-9][0-9]{0,5}\s*", word, re.ASCII):
            shown = word.strip() if len(word) < 20 else f"{word.strip()[:17]}..."
            raise SelectionError(f"--bs: '{shown}' is no batch size; expected e.g. --bs 32,64,128,256")
        sizes.append(int(word))
    return tuple(dict.fromkeys(sizes))


def _names(given: list[str] | None) -> tuple[str, ...]:
    names = tuple(name.strip() for text in given or () for name in text.split(","))
    if any(not name for name in names):
        raise SelectionError("--config: expected a name or a glob, got nothing; `tcbench list` shows the configs")
    return names


def _input(data: str | None) -> Input | None:
    from tcbench.record import Input

    if data is None:
        return None
    if data == "synthetic":
        return Input(kind="synthetic")
    if not data.isprintable():
        raise SelectionError(f"--data {data!a}: expected a path of printable UTF-8 characters")
    return Input(kind="folder", path=str(Path(data).absolute()))


def _within(name: str, value: float | None, expected: str, holds: Callable[[float], bool]) -> float | None:
    if value is not None and not holds(value):
        raise SelectionError(f"{name} {value:g}: expected {expected}")
    return value


@_command(
    "Draw results as the talk does.",
    """
tcbench plot                                      the newest run's throughput
tcbench plot results/*/naruse2018-*.jsonl -o talk.svg
tcbench plot --slide 33 -o summary.png            the talk's summary: fp32, fp16, fp16 at its best
tcbench plot --kind ladder -o ladder.pdf          what each rung buys
""",
)
def plot(
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RESULTS", help="Files or folders of records. Default: the newest run here."),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .png, .svg or .pdf file.")] = Path(
        "tcbench.png"
    ),
    kind: Annotated[str, typer.Option(metavar="KIND", help="throughput or ladder.")] = "throughput",
    slide: Annotated[
        int | None, typer.Option(metavar="N", help="One of the talk's comparisons: 12, 21, 27, 31 or 33.")
    ] = None,
) -> None:
    """Draw results as the talk does: bars by batch size, one colour per config, 'Better' pointing up."""
    from tcbench import store
    from tcbench.analysis.summary import summarise
    from tcbench.views import plots

    if kind not in ("throughput", "ladder"):
        raise SelectionError(f"--kind {kind}: expected throughput or ladder")
    plots.check_path(output)
    read = store.read(results or [_newest(OUT)])
    for note in read.notes:
        typer.echo(f"note: {note}", err=True)
    summaries = summarise(store.current(read.records))
    if slide is not None:
        figure = plots.slide_chart(summaries, slide)
    elif kind == "ladder":
        figure = plots.ladder_chart(summaries)
    else:
        figure = _throughput(summaries)
    plots.save(figure, output)
    typer.echo(f"wrote {output}")


def _newest(out: Path) -> Path:
    from tcbench.store import SUFFIX

    found = [path for path in out.rglob(f"*{SUFFIX}") if path.stat().st_size] if out.is_dir() else []
    files = sorted(found, key=lambda path: path.stat().st_mtime)
    if not files:
        raise SelectionError(f"no results in {out}/; `tcbench run` makes some, or name a file")
    return files[-1]


@_command("Show scenarios, configs and rungs.", name="list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show scenarios, their configs, and the rungs with what each needs and whether it is here."""
    from tcbench import device
    from tcbench.backends import device_kinds
    from tcbench.views import catalogue

    catalogue.show(device.find("auto", device_kinds()), json)


@data_app.command("make", cls=GroupedCommand)
def data_make(
    force: Annotated[bool, typer.Option("--force", help="Make it anew even if it is there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Generate the JPEG set that runs read by default (about 60 MB in the user's cache)."""
    from tcbench import dataset
    from tcbench.views.console import make_console
    from tcbench.views.progress import counting

    with counting(make_console(stderr=True), "generating JPEGs", quiet) as advance:
        made = dataset.generate(progress=advance) if force else dataset.ensure_generated(advance)
    typer.echo(f"{len(made.files)} images in {len(made.classes)} classes: {made.root}")


@_command("Say what is missing here and what mends it.")
def doctor(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say what was found here, what is missing, what would spoil a measurement, and the command that mends it.

    Exit code: 0; 1 when tcbench cannot run at all; 2 when CUDA packages are installed but cannot be used here.
    """
    from tcbench import checkup
    from tcbench.views import catalogue

    findings = checkup.examine(OUT)
    catalogue.show_findings(findings, json)
    if code := checkup.exit_code(findings):
        raise typer.Exit(code)


def main() -> NoReturn:
    """The entry point: every error the user can mend is one line on standard error and an exit code."""
    debug = "--debug" in sys.argv[1:] or bool(os.environ.get("TCBENCH_DEBUG"))
    sys.argv[1:] = [word for word in sys.argv[1:] if word != "--debug"]
    # A job scheduler's polite end is treated like Ctrl-C: the running worker ends, what is done is kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows another
    try:
        app()
    except TcbenchError as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"tcbench: error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if debug:
            traceback.print_exc()
        message = " ".join(str(error).split())
        typer.echo(f"tcbench: internal error: {type(error).__name__}: {message} (--debug shows where)", err=True)
        sys.exit(INTERNAL_ERROR)
    sys.exit(0)


if __name__ == "__main__":
    main()
