"""`tcbench explain`: what holds each cell back, and what to try next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tcbench.cli.app import OUT, command
from tcbench.cli.options import FormatOption, ResultsFolderOption, results_argument

if TYPE_CHECKING:
    from tcbench.analysis.summary import CellSummary
    from tcbench.core.record import Record
    from tcbench.core.timeline import Timeline


@command(
    "Show what limits each cell, and what to try next.",
    """
tcbench explain                                   the newest run
tcbench explain results/*/naruse2018-*.jsonl --details
tcbench explain profile.json.gz                   what a timeline shows
""",
)
def explain(
    results: Annotated[list[str] | None, results_argument(", or timelines of `tcbench profile`")] = None,
    details: Annotated[bool, typer.Option("--details", help="Also a sentence per cell.")] = False,
    format_: FormatOption = "table",
    out: ResultsFolderOption = OUT,
) -> None:
    """Show for each cell what limits it (input-bound, host-bound, gpu-bound, network-bound or balanced), with the
    numbers, the rung that reduces it and the most that rung could gain; beside it the measured gain, where these
    results have it."""
    from tcbench.analysis.explanation import explain as explanations
    from tcbench.cli import host_profiles
    from tcbench.cli.results import read_with_timelines
    from tcbench.show import explain as view
    from tcbench.show import simulated
    from tcbench.show.console import make_console

    given = read_with_timelines(results, out, alone=True)
    if given.timelines:
        _show_timelines(given.timelines, format_ == "json")
    if not given.records:
        return
    arithmetic_s, ceiling = arithmetic(given.records)
    explained = explanations(given.records, problem_of, arithmetic_s)
    by = ceiling(explained[0].summary)
    if format_ == "json":
        typer.echo(view.to_json(explained, by))
        return
    console = make_console()
    for line in simulated.lines(record.environment for record in given.records):
        console.print(line, style="bold", markup=False, highlight=False, soft_wrap=True)
    narrow = not view.fits(explained, console)
    for heading, part in view.by_code(explained):
        if heading:
            console.print(heading, style="bold", markup=False, highlight=False, soft_wrap=True)
        console.print(view.table(part, narrow=narrow))
        console.print()
    for line in (hosts := host_profiles.lines(explained, out)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if hosts:
        console.print()
    if details:
        for line in view.sentences(explained):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print()
    checks = view.checks(explained)
    if checks is not None:
        ran = simulated.heading(record.environment for record in given.records)
        console.print(f"The model against what was {ran}:", style="bold")
        console.print(checks)
        console.print()
    for line in view.notes(explained, by, narrow=narrow):
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


def _show_timelines(timelines: Sequence[Timeline], json: bool) -> None:
    from tcbench.analysis.bottleneck import summarise
    from tcbench.show import explain as view

    bottlenecks = list(map(summarise, timelines))
    if json:
        typer.echo(view.timelines_json(timelines, bottlenecks))
        return
    for place, (timeline, bottleneck) in enumerate(zip(timelines, bottlenecks, strict=True)):
        typer.echo("\n".join([*([""] if place else []), timeline.device_name, *view.lines_of(bottleneck)]))


def problem_of(summary: CellSummary) -> Callable[[Sequence[str]], str | None]:
    """A function that says why a list of rungs is no config on the cell's device, or None where it is one. The packages
    of this machine do not matter: the results may be another's. Of a backend that is not ours only measured configs are
    known to be possible."""
    from tcbench.engine.accelerators.device import Device, host, kind_of
    from tcbench.engine.backends import known_rungs
    from tcbench.run.plan import missing

    rung_set = known_rungs(summary.cell.backend)
    if rung_set is None:
        return lambda _: "nothing is known of its backend's rungs"
    gpu = summary.environment.gpu if summary.environment else None
    capability = gpu.compute_capability if gpu else None
    # Another machine's processor may have any instructions: what would need some is not advised.
    instructions = host().instructions or frozenset() if summary.machine == host().machine else frozenset()
    device = Device(summary.cell.device, "", 0, capability)
    on_host = kind_of(device.name).is_host

    def problem(rungs: Sequence[str]) -> str | None:
        conflict = rung_set.problem(rungs)
        new = [rung_set[name].requires for name in rungs if name not in summary.cell.rungs and name in rung_set]
        if on_host and any(requires.is_emulated(instructions) for requires in new):
            return "its instructions are not known to be there"
        reasons = (missing(rung_set[name].requires, device, remote=True) for name in rungs)
        return conflict or next(filter(None, reasons), None)

    return problem


def arithmetic(
    records: Sequence[Record],
) -> tuple[Callable[[CellSummary, Sequence[str]], float], Callable[[CellSummary], str | None]]:
    """The least time of the arithmetic of forward and backward, and whose ceiling it is: of the ceilings that are known
    those that none of these records beat."""
    import functools

    from tcbench.analysis.roofline import Ceilings, phase_roofline, precision_of
    from tcbench.analysis.summary import by_code, summarise
    from tcbench.engine.backends import model_of
    from tcbench.run import ceilings

    trials = by_code(records)
    summaries = [s for s in summarise(records) if s.images_per_s is not None and model_of(s.cell)]

    @functools.cache
    def known_of(machine: str | None, device: str, threads: int) -> Ceilings | None:
        here = [s for s in summaries if (s.machine, s.cell.device, s.cell.threads) == (machine, device, threads)]
        known = ceilings.known(here[0]) if here else None
        if known is None:
            return None
        timed = [entry for s in here for entry in phase_roofline(s, trials[s.key], known).timed]
        return known.without(known.beaten_by(timed))

    def standing(summary: CellSummary) -> Ceilings | None:
        return known_of(summary.machine, summary.cell.device, summary.cell.threads)

    def arithmetic_s(summary: CellSummary, rungs: Sequence[str]) -> float:
        known, cell = standing(summary), summary.cell
        model = model_of(cell)
        if known is None or model is None:
            return 0.0
        macs = model.macs(cell.variant, cell.image_size, cell.n_classes)
        # Backward computes as much again for the inputs and for the weights.
        return 3 * 2 * macs * cell.batch_size / known.flops_s(precision_of(rungs))

    def ceiling(summary: CellSummary) -> str | None:
        known = standing(summary) if model_of(summary.cell) else None
        return None if known is None else known.says

    return arithmetic_s, ceiling
