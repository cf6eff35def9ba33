"""`tcbench claims`: what of the talk holds on this machine."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tcbench.cli.app import OUT, command
from tcbench.cli.options import ResultsFolderOption, complete_scenario, format_option, results_argument
from tcbench.core.errors import ScenarioError, SelectionError

if TYPE_CHECKING:
    from tcbench.analysis.claims import Asked
    from tcbench.core.record import Cell
    from tcbench.run.scenario import Scenario


@command(
    "Say which of the talk's claims hold here.",
    """
tcbench claims                                    the newest run
tcbench claims results/*/naruse2018-*.jsonl --format markdown
tcbench claims results --scenario my.toml         by the [[claim]] tables of a scenario of one's own
""",
)
def claims(
    results: Annotated[
        list[str] | None,
        results_argument(
            "; beside them timelines of `tcbench profile`, which tell kernels per step, and a document of `tcbench "
            "numerics` (else the newest beside the records)"
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The scenario whose claims to judge, by its name or file. Default: that of the results.",
            autocompletion=complete_scenario,
        ),
    ] = None,
    format_: Annotated[
        Literal["table", "markdown", "json"],
        format_option(("table", "markdown", "json")),
    ] = "table",
    out: ResultsFolderOption = OUT,
) -> None:
    """The scorecard: each claim of the scenario, the talk in 2018 beside this machine, with the figures it rests on. A
    claim holds, does not hold, is undecided (its interval includes the limit) or was not measured. The exit code is 0
    whatever holds."""
    from tcbench.analysis.bottleneck import summarise
    from tcbench.analysis.claims import any_of, by_timelines, scorecards
    from tcbench.cli.documents import training
    from tcbench.cli.results import read_with_documents
    from tcbench.show import claims as view
    from tcbench.show.console import make_console

    given = read_with_documents(results, out)
    seen = list(map(summarise, given.timelines))
    trained = training(given.documents, given.paths)
    cards = scorecards(given.records, asked_of(scenario), any_of(by_timelines(seen), trained))
    if seen and len(cards) > 1:
        raise SelectionError("timelines do not say which machine they are of; name the records of one run with them")
    if format_ != "table":
        typer.echo(view.to_json(cards) if format_ == "json" else view.markdown(cards))
        return
    console = make_console()
    for card in cards:
        console.print(view.title(card), style="bold", markup=False, highlight=False, soft_wrap=True)
        console.print(view.table(card))
        console.print(f"\n{view.tally(card)}", markup=False, highlight=False, soft_wrap=True)
        console.print()
    for line in view.notes(cards):
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


def asked_of(scenario: str | None) -> Callable[[Cell], Asked]:
    """The claims on a cell's setting: by the scenario given, or by that which the cell names. The function raises
    ScenarioError."""
    from tcbench.analysis.claims import Asked
    from tcbench.run.scenario import load, shipped

    @functools.cache
    def loaded(name: str) -> Scenario:
        if scenario is None and name not in shipped():
            raise ScenarioError(
                f"scenario '{name}' of the results is none that comes with tcbench; name its file with --scenario"
            )
        return load(scenario or name)

    def asked(cell: Cell) -> Asked:
        named = loaded(cell.scenario)
        here = named.on(cell.device.partition(":")[0])
        name = named.name if named.path == shipped().get(named.name) else str(named.path)
        return Asked(named.name, here.claims, shlex.join(["tcbench", "run", name, *setting(cell, here)]))

    return asked


def setting(cell: Cell, scenario: Scenario) -> Iterator[str]:
    """The options by which a run has the cell's setting, where they are not what the scenario has or `auto` takes."""
    from tcbench.engine.accelerators.device import kinds
    from tcbench.engine.models import MODELS

    kind, source = kinds().get(cell.device.partition(":")[0]), cell.input
    if kind is not None and kind.simulates is not None:
        yield from ("--device", cell.device)
    if cell.host_speed != 1:
        yield from ("--host-speed", f"{cell.host_speed:g}")
    if cell.model in MODELS and (cell.model,) != scenario.models:
        yield from ("--model", cell.model)
    if cell.image_size != scenario.image_size:
        yield from ("--image-size", str(cell.image_size))
    if cell.ranks > 1:
        yield from ("--ranks", str(cell.ranks))
    if source.kind == "modelled":
        yield from ("--data", f"modelled:{source.images_per_s:.0f}")
    elif source.kind in ("synthetic", "folder") and source.kind != scenario.input.kind:
        yield from ("--data", source.path or source.kind)
