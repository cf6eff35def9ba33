"""`tcbench plot`: records as charts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tcbench.cli.app import OUT, command
from tcbench.cli.charts import throughput_chart
from tcbench.cli.results import newest
from tcbench.errors import SelectionError


@command(
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
    read = store.read(results or [newest(OUT)])
    for note in read.notes:
        typer.echo(f"note: {note}", err=True)
    summaries = summarise(store.current(read.records))
    if slide is not None:
        figure = plots.slide_chart(summaries, slide)
    elif kind == "ladder":
        figure = plots.ladder_chart(summaries)
    else:
        figure = throughput_chart(summaries)
    plots.save(figure, output)
    typer.echo(f"wrote {output}")
