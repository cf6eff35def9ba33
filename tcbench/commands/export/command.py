"""`tcbench export`: writes results in formats of other tools."""

from pathlib import Path
from typing import Literal, get_args

import typer

from tcbench.core.errors import SelectionError
from tcbench.show import options, streams
from tcbench.show.app import command
from tcbench.show.notes import aside, echo_written
from tcbench.show.results import read_results

Format = Literal["csv", "parquet", "json", "github-action-benchmark", "bencher"]
_BY_ENDING: dict[str, Format] = {"": "csv", ".csv": "csv", ".json": "json", ".parquet": "parquet"}
"""The format that a file name's extension stands for."""


@command("Export results for other tools.")
def export(
    results: list[str] | None = options.RESULTS,
    format_: Format | None = options.format_option(
        get_args(Format), None, "Default: by the extension of -o, else csv."
    ),
    output: Path | None = options.output_option("The file to write. Default: standard output."),
    per: Literal["trial", "cell", "step"] | None = options.GENERAL.option(
        "--per ROW", "What a row is: trial, cell or step. Default: trial; formats of services have cells only."
    ),
    out: Path = options.RESULTS_FOLDER,
) -> None:
    """Export results as tidy tables with units in the column names (csv, parquet, json), or in the formats of services
    that track benchmarks over time (github-action-benchmark as customBiggerIsBetter, Bencher Metric Format).

    Examples:
    tcbench export -o trials.csv                              the newest run, a row per trial
    tcbench export results --per step -o steps.parquet
    tcbench export --format github-action-benchmark -o output.json
    tcbench export --format bencher | bencher run --adapter json ..."""
    from tcbench.commands.export import formats

    ending = "" if output is None else output.suffix.lower()
    if format_ is None and ending not in _BY_ENDING:
        raise SelectionError(f"-o {output}: expected a name that ends in .csv, .json or .parquet, or --format")
    format_ = format_ or _BY_ENDING[ending]
    if per not in (None, "cell") and format_ in formats.SERVICES:
        raise SelectionError(f"--per {per}: --format {format_} has an entry for each cell; expected --per cell")
    if format_ == "parquet" and (output is None or streams.is_terminal(output)):
        raise SelectionError("--format parquet is not text: name a file with -o FILE")
    records = read_results(results, out).records
    if format_ == "parquet":
        data = formats.to_parquet(records, per or "trial")
    elif format_ in formats.SERVICES:
        data = formats.SERVICES[format_](records).encode("utf-8", "backslashreplace")
        if (missing := formats.missing_line(records)) is not None:
            aside(missing)
    else:
        text = formats.to_json if format_ == "json" else formats.to_csv
        data = text(records, per or "trial").encode("utf-8", "backslashreplace")
    if output is None:
        typer.echo(data.decode("utf-8"), nl=False)
        return
    streams.write_file(output, data, options.ANOTHER_FILE)
    echo_written(output)
