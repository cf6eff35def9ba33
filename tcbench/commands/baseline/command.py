"""`tcbench baseline set`, `list`, `show`, `remove`: named copies of results to compare with."""

from pathlib import Path

import typer

from tcbench.core.text import plain
from tcbench.show import options
from tcbench.show.app import OUT, command, command_group
from tcbench.show.console import make_console
from tcbench.show.notes import aside
from tcbench.show.results import read_results

baseline_app = command_group("baseline", "Keep results under a name, to compare others with them.")


def complete_baseline(incomplete: str) -> list[str]:
    """Return the names of baselines that begin with `incomplete`, for shell completion."""
    from tcbench.run import baseline

    return [name for name in baseline.names(OUT) if name.startswith(incomplete)]


NAME = typer.Argument(metavar="NAME", help="The baseline's name.", autocompletion=complete_baseline)


@command("Keep a copy of results under a name.", "set", group=baseline_app)
def set_(
    name: str = NAME,
    results: list[str] | None = options.RESULTS,
    force: bool = options.GENERAL.option("--force", "Replace the baseline that has this name."),
    out: Path = options.RESULTS_FOLDER,
) -> None:
    """Keep a copy of results under a name: FOLDER/baselines/NAME.jsonl (--out)."""
    from tcbench.commands.baseline.table import confirmation, doubts
    from tcbench.run import baseline

    records = read_results(results, out).records
    path = baseline.keep(name, records, out, replace=force)
    typer.echo(confirmation(baseline.describe(name, path, records)))
    for line in doubts(records):
        aside(f"note: {line}")


@command(name="list", group=baseline_app)
def list_(format_: options.TableOrJson = options.FORMAT, out: Path = options.RESULTS_FOLDER) -> None:
    """Show the baselines here."""
    from tcbench.commands.baseline.table import table, to_json
    from tcbench.run import baseline

    baselines = baseline.read_all(out)
    if format_ == "json":
        typer.echo(to_json(baselines))
        return
    for candidate in baselines:
        if isinstance(candidate, baseline.BrokenBaseline):
            aside(f"note: {plain(candidate.reason)}")
    readable = [candidate for candidate in baselines if isinstance(candidate, baseline.Baseline)]
    if readable:
        make_console().print(table(readable))
    elif not baselines:
        typer.echo(f"no baselines in {out / 'baselines'}/; `tcbench baseline set NAME` keeps the newest run")


@command(group=baseline_app)
def show(
    name: str = NAME,
    details: bool = options.DETAILS,
    format_: options.TableOrJson = options.FORMAT,
    out: Path = options.RESULTS_FOLDER,
) -> None:
    """Show where a baseline is from, and its results."""
    from tcbench.analysis.summary import speedups, summarise
    from tcbench.commands.baseline.table import facts
    from tcbench.commands.run.table import footnotes, reasons, results_table, summary_json
    from tcbench.core import store
    from tcbench.run import baseline
    from tcbench.show import naming

    path = baseline.baseline_path(name, out)
    records = read_results([str(path)], out).records
    description = baseline.describe(name, path, records)
    summaries = summarise(store.current(records))
    over_base = speedups(summaries)
    if format_ == "json":
        typer.echo(summary_json(name, path, summaries, over_base))
        return
    console = make_console(details=details)
    console.say(*naming.simulation_lines(record.environment for record in records), style="bold")
    console.say(facts(description), "")
    console.print(results_table(summaries, over_base))
    console.say(*reasons(summaries), style="yellow")
    console.notes(footnotes(summaries))


@command(group=baseline_app)
def remove(name: str = NAME, out: Path = options.RESULTS_FOLDER) -> None:
    """Delete a baseline. The runs that it was copied from stay."""
    from tcbench.run import baseline

    typer.echo(f"removed {baseline.remove(name, out)}")
