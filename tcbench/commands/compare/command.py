"""`tcbench compare`: whether current results are certainly slower than base results."""

from dataclasses import replace
from pathlib import Path

import typer

from tcbench.commands.compare import outcome
from tcbench.core.errors import NotComparableError, SelectionError
from tcbench.core.text import plain
from tcbench.show import options
from tcbench.show.app import command, given_words
from tcbench.show.results import newest, read_files
from tcbench.show.sides import Labels


@command("Compare results with earlier ones: what became slower?")
def compare(
    context: typer.Context,
    base: str | None = typer.Argument(
        None, metavar="BASE", help="A file or folder of records, or the id of a run. Not with --baseline."
    ),
    current: str | None = typer.Argument(
        None, metavar="CURRENT", help="The same. The only argument with --baseline. Default, with that: the newest run."
    ),
    baseline: str | None = options.GENERAL.option(
        "--baseline NAME", "In place of BASE: the copy that `tcbench baseline set NAME` made.", takes=options.BASELINE
    ),
    out: Path = options.RESULTS_FOLDER,
    metric: list[str] | None = outcome.METRIC,
    threshold_: str = outcome.THRESHOLD,
    allow: list[str] | None = outcome.ALLOW,
    strict: bool = outcome.STRICT,
    details: bool = options.DETAILS,
    format_: outcome.Format = outcome.FORMAT,
    output: Path | None = outcome.OUTPUT,
) -> None:
    """Compare two sets of results cell by cell: the ratio with its 95% interval over trials, a verdict, and the phase
    where a loss occurs. Each side needs several trials (`tcbench run --trials 5`). For the two files of a gate, you
    see the gate's verdicts, unless you give --threshold or --metric. Exit codes: 0 no regression; 1 a regression, a
    missing cell, or a cell that no longer runs; 2 unreadable results; 4 inconclusive with --strict, or an unstable
    gate; 5 not comparable.

    Examples:
    tcbench compare results/before.jsonl results/after.jsonl
    tcbench compare cpu-20261120-101500 cpu-20261121-093000      by the ids of runs
    tcbench compare --baseline main                              the newest run with the baseline 'main'
    tcbench compare --baseline main --format github --strict     in CI
    tcbench compare v100/ h200/ --allow all --metric throughput,energy"""
    from tcbench.analysis.compare import compare as compared
    from tcbench.analysis.verdict import Rule
    from tcbench.run import gate_file

    metrics, rule = outcome.metrics(metric), Rule(outcome.threshold(threshold_))
    may_differ = outcome.allowed_facets(allow)
    outcome.check_output(output)
    (base_path, base_name), (current_path, current_name) = _inputs(base, current, baseline, out)
    sides = read_files([base_path]).records, read_files([current_path]).records
    files = plain(str(base_path)), plain(str(current_path))
    labels = Labels(outcome.side_name(base_name, sides[0]), outcome.side_name(current_name, sides[1]), files)
    rejudged = given_words(context, ("metric", "threshold_"))
    content = None if rejudged else gate_file.read_finished(base_path, current_path)
    if content is not None:
        typer.echo(f"showing the verdicts of the gate ({gate_file.verdicts_path(current_path)})", err=True)
        comparison = gate_file.comparison(content, *sides)
        may_differ |= outcome.COMPARED
    else:
        comparison = compared(*sides, metrics, rule)
        codes = [{record.environment.code for record in side if record.environment} for side in sides]
        if codes[0] == codes[1] and len(codes[0]) == 1 and not comparison.differences:
            note = "base and current are the same code: any difference comes from the machine"
            comparison = replace(comparison, notes=(note, *comparison.notes))
    try:
        outcome.check_distinct(*sides, labels)
        comparison = outcome.with_allowed(comparison, labels, may_differ, outcome.retry_command(context))
    except NotComparableError as error:
        if format_ == "github":
            from tcbench.commands.compare.github import command as annotation

            typer.echo(annotation("error", "tcbench: not comparable", str(error)))
        raise
    outcome.present(comparison, labels, format_, output, details)
    raise typer.Exit(outcome.exit_code(comparison, strict))


def _inputs(base: str | None, current: str | None, baseline: str | None, out: Path) -> list[tuple[Path, str]]:
    """Return the path and the name of each side's records. Raises SelectionError or StoreError."""
    from tcbench.core import store
    from tcbench.run.baseline import baseline_path

    if baseline is None:
        if base is None or current is None:
            raise SelectionError("expected two results: tcbench compare BASE CURRENT, or --baseline NAME CURRENT")
        return [(store.resolve(name, out), name) for name in (base, current)]
    if current is not None:
        raise SelectionError(f"--baseline {baseline} replaces BASE: expected only CURRENT, got two results")
    path = newest(out, announce=True) if base is None else store.resolve(base, out)
    return [(baseline_path(baseline, out), f"baseline {baseline}"), (path, base or path.stem)]
