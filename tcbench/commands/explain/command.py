"""`tcbench explain`: what limits each cell, and what to try next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.show import options
from tcbench.show.app import command
from tcbench.show.console import make_console, stages
from tcbench.show.next_steps import NextStep, cell_step, out_words
from tcbench.show.results import read_results

if TYPE_CHECKING:
    from tcbench.analysis.explanation import Explanation
    from tcbench.core.timeline import Timeline

MOST_MIB = options.OUTPUT.option(
    "--most-mib N",
    "The largest trace of any training that is read, in MiB when unpacked.",
    2048,
    takes="a whole number, 1 or more",
    within=(1, None),
)


@command("Show what limits each cell, and what to try next.")
def explain(
    results: list[str] | None = options.results_argument(", or traces of tcbench, PyTorch's profiler, Nsight Systems"),
    details: bool = options.details_option("Also show a sentence per cell. "),
    quiet: bool = options.QUIET,
    format_: options.TableOrJson = options.FORMAT,
    most_mib: int = MOST_MIB,
    out: Path = options.RESULTS_FOLDER,
) -> None:
    """Show for each cell what limits it, with the figures, and the rung to try next, with the expected rate and, if it
    was run, the measured one. The limit is input-bound, host-bound, gpu-bound, network-bound or balanced. If a CPU
    computes for most of the step, it is compute-bound, or the longest phase and its share.

    For a CPU, the operations of configs that were not run are timed once on this machine: 2 to 5 seconds per config,
    some minutes for a whole ladder. For a GPU, a table has the rates that cards attain.

    Examples:
    tcbench explain                                   the newest run
    tcbench explain results/*/naruse2018-*.jsonl --details
    tcbench explain profile.json.gz                   what a timeline shows
    tcbench explain pytorch-trace.json.gz --json      what a trace of PyTorch's profiler shows
    tcbench explain report.nsys-rep                   what Nsight Systems recorded of any training"""
    from tcbench.commands.explain import table
    from tcbench.commands.forecast import forecast
    from tcbench.core.errors import SelectionError
    from tcbench.run import prediction
    from tcbench.run.inputs import split_profiler_traces
    from tcbench.show import naming

    profiler_traces, results = split_profiler_traces(results)
    if profiler_traces:
        if results and format_ == "json":
            raise SelectionError(f"{results[0]}: not a trace like {profiler_traces[0]}; --json needs one kind of input")
        _show_profiler_traces(profiler_traces, most_mib << 20, format_ == "json", details)
        if not results:
            return
    inputs = read_results(results, out, "timelines")
    if inputs.timelines:
        _show_timelines(inputs.timelines, format_ == "json")
    if not inputs.records:
        return
    interrupted = "; finished work is kept; run the same command to continue"
    with stages(quiet, lambda: interrupted) as advance:
        explained = prediction.explain_with_predictions(inputs.records, processes=forecast.PROCESSES, progress=advance)
    if format_ == "json":
        typer.echo(table.to_json(explained))
        return
    console = make_console(details=details)
    console.say(*naming.simulation_lines(record.environment for record in inputs.records), style="bold")
    for heading, part in table.group_by_setting(explained):
        console.table(table.table(part), heading)
    if details:
        console.say(*table.sentences(explained), "")
    checks = table.checks(explained)
    if checks is not None:
        ran = naming.measured_or_simulated(record.environment for record in inputs.records)
        console.table(checks, f"The model compared with what was {ran}:")
    console.notes(table.notes(explained))
    console.offer(_next_steps(explained, results or (), out))


def _next_steps(explained: Sequence[Explanation], results: Sequence[str], out: Path) -> Iterator[NextStep]:
    """Yield the commands that try the next rung, profile the fastest cell, and write the report."""
    from tcbench.core.record import DEFAULT_BACKEND

    rates = [(e.bottleneck.images_per_s, e.summary, e.advice) for e in explained if e.bottleneck]
    rates.sort(key=lambda row: -row[0])
    untried = [
        (summary, "+".join(advice.rungs))
        for _, summary, advice in rates
        if advice
        and advice.ratio is None
        and summary.cell.backend == DEFAULT_BACKEND
        and summary.cell.scenario_cudnn is None
    ]
    steps = [
        cell_step("run", summary.cell, "try the next rung", config=config, out=out, machine=summary.machine)
        for summary, config in untried[:1]
    ]
    steps += [
        cell_step("profile", summary.cell, "where the fastest cell spends its step", out=out, machine=summary.machine)
        for _, summary, _ in rates[:1]
    ]
    yield from filter(None, steps)
    yield NextStep(("report", *results, *out_words(out)), "everything on one page")


def _show_timelines(timelines: Sequence[Timeline], json: bool) -> None:
    """Print what each timeline shows, as lines or JSON."""
    from tcbench.analysis.bottleneck import explain_timeline
    from tcbench.commands.explain.table import cost_lines, timeline_lines, timelines_json
    from tcbench.commands.roofline.roofline import costliest
    from tcbench.run import ceilings

    bottlenecks = list(map(explain_timeline, timelines))
    costs = [costliest(timeline, ceilings.trial_ceilings(timeline.record)) for timeline in timelines]
    if json:
        typer.echo(timelines_json(timelines, bottlenecks, costs))
        return
    for place, timeline in enumerate(timelines):
        lines = [timeline.device_name, *timeline_lines(bottlenecks[place]), *cost_lines(costs[place])]
        typer.echo("\n".join([*[""] * bool(place), *lines]))


def _show_profiler_traces(paths: Sequence[Path], most_bytes: int, json: bool, details: bool) -> None:
    """Print the verdict and advice on each trace, as lines or JSON. Raises TraceError for a trace without GPU work."""
    from tcbench.analysis.rank_traces import rank_waits
    from tcbench.run.training_traces import judge_file
    from tcbench.show import ranks_report, trace_report

    judged = [judge_file(path, most_bytes) for path in paths]
    waits = rank_waits([(each.trace, each.verdict) for each in judged])
    if json:
        typer.echo(trace_report.to_json(judged, ranks_report.rank_fields(waits) if waits else None))
        return
    console = make_console(details=details)
    if waits and waits.ranks:
        console.say(*(f"{each.path.name}: {trace_report.sentence(each.verdict)}" for each in judged))
    else:
        for place, trace in enumerate(judged):
            console.say(*[""] * bool(place))
            trace_report.show(console, trace)
    if waits:
        ranks_report.show(console, waits)
