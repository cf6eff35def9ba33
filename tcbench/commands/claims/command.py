"""`tcbench claims`: what of the talk holds on this machine."""

import shlex
from pathlib import Path
from typing import Literal

import typer

from tcbench.commands.claims.evidence import training_evidence
from tcbench.core.errors import SelectionError
from tcbench.show import options
from tcbench.show.app import command
from tcbench.show.console import make_console
from tcbench.show.next_steps import NextStep, machine_needed, out_words
from tcbench.show.results import read_results


@command("Show which of the talk's claims hold here.")
def claims(
    results: list[str] | None = options.results_argument(
        "; also timelines of `tcbench profile`, for the kernels per step, and a document of `tcbench numerics` (else "
        "the newest next to the records)"
    ),
    scenario: str | None = options.GENERAL.option(
        "--scenario NAME",
        "The scenario whose claims to judge, by its name or file. Default: that of the results.",
        takes="a scenario that `tcbench list` shows, or a TOML file",
        complete=options.completion("complete_scenario"),
    ),
    format_: Literal["table", "markdown", "json"] = options.format_option(("table", "markdown", "json")),
    out: Path = options.RESULTS_FOLDER,
    details: bool = options.DETAILS,
) -> None:
    """Show a scorecard: each claim of the scenario, its outcome in the talk of 2018 and on this machine, and the
    figures behind it. A claim holds, does not hold, is undecided (its interval includes the limit) or was not measured.
    The exit code is 0 in all these cases.

    Examples:
    tcbench claims                                    the newest run
    tcbench claims results/*/naruse2018-*.jsonl --format markdown
    tcbench claims results --scenario my.toml         by the [[claim]] tables of your own scenario"""
    from tcbench.analysis.bottleneck import explain_timeline
    from tcbench.analysis.claims import by_timelines, scorecards
    from tcbench.commands.claims import table
    from tcbench.run.plan import lacking
    from tcbench.run.scenario import claims_of

    inputs = read_results(results, out, "documents")
    bottlenecks = list(map(explain_timeline, inputs.timelines))
    sources = (by_timelines(bottlenecks), *training_evidence(inputs.documents, inputs.paths))
    cards = scorecards(inputs.records, claims_of(scenario, options.words), sources, lacking)
    if bottlenecks and len(cards) > 1:
        raise SelectionError("timelines do not record their machine; name the records of only one run with them")
    if format_ != "table":
        typer.echo(table.to_json(cards) if format_ == "json" else table.markdown(cards))
        return
    console = make_console(details=details)
    for card in cards:
        console.say(table.title(card), style="bold")
        console.print(table.table(card))
        console.say(f"\n{table.tally(card)}")
        console.print()
    console.notes(table.notes(cards))
    # The results of these commands go to the folder that the present ones came from.
    console.offer(
        NextStep(
            (*shlex.split(run)[1:], *out_words(out)),
            "measure what is missing",
            machine_needed(card.cell.device, card.machine),
        )
        for card in cards
        for line in card.commands
        for run in line.split(" && ")
    )
