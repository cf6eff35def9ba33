"""`tcbench export`: results for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcbench.cli.app import OUT, command
from tcbench.cli.options import ANOTHER_FILE, ResultsFolderOption
from tcbench.core import files
from tcbench.core.errors import SelectionError, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tcbench.core.record import Record

FORMATS = ("csv", "parquet", "json", "github-action-benchmark", "bencher")
PER = ("trial", "cell", "step")


@command(
    "Give results to other tools.",
    """
tcbench export -o trials.csv --format csv                 the newest run, a row per trial
tcbench export results --format parquet --per step -o steps.parquet
tcbench export --format github-action-benchmark -o output.json
tcbench export --format bencher | bencher run --adapter json ...
""",
)
def export(
    results: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RESULTS", help="Files or folders of records, or ids of runs. Default: the newest run here."
        ),
    ] = None,
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"{', '.join(FORMATS)}.")] = "csv",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: standard output.")
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(metavar="ROW", help="trial, cell or step. Default: trial; services take cells only."),
    ] = None,
    out: ResultsFolderOption = OUT,
) -> None:
    """Export results: tidy tables with units in the columns' names (csv, parquet, json), or what services that follow
    benchmarks over time read (github-action-benchmark as customBiggerIsBetter, Bencher Metric Format)."""
    _check(format_, per, output)
    records = _records(results, out)

    from tcbench.show import export as view

    if format_ == "parquet":
        data = view.to_parquet(records, per or "trial")
    elif format_ in view.SERVICES:
        data = view.SERVICES[format_](records).encode("utf-8", "backslashreplace")
    else:
        data = view.TEXT[format_](records, per or "trial").encode("utf-8", "backslashreplace")
    if output is None:
        typer.echo(data.decode("utf-8"), nl=False)
        return
    files.write(output, data, ANOTHER_FILE)
    typer.echo(f"wrote {output}")


def _check(format_: str, per: str | None, output: Path | None) -> None:
    """Raises SelectionError for what does not go together."""
    if format_ not in FORMATS:
        raise SelectionError(f"--format {format_!a}: expected {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if per is not None and per not in PER:
        raise SelectionError(f"--per {per!a}: expected {', '.join(PER[:-1])} or {PER[-1]}")
    if per not in (None, "cell") and format_ in ("github-action-benchmark", "bencher"):
        raise SelectionError(f"--per {per}: --format {format_} has an entry for each cell; expected --per cell")
    if format_ == "parquet" and output is None:
        raise SelectionError("--format parquet is not text: name a file with -o FILE")


def _records(results: list[str] | None, out: Path) -> Sequence[Record]:
    """What was named, each trial's current record; notes go to standard error. Raises StoreError."""
    from tcbench.cli.results import newest
    from tcbench.core import store

    paths = [store.resolve(named, out) for named in results] if results else [newest(out)]
    read = store.read(paths)
    for note in read.notes:
        typer.echo(f"note: {note}", err=True)
    if not read.records:
        raise StoreError(f"{', '.join(map(str, paths))}: no records; `tcbench run` makes some")
    return store.current(read.records)
