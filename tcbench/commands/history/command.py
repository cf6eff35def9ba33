"""`tcbench history`: cells over commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.commands.compare import outcome
from tcbench.core.errors import SelectionError
from tcbench.run.inputs import local_runs, select_cells
from tcbench.show import options
from tcbench.show.app import command
from tcbench.show.console import make_console
from tcbench.show.notes import Caution, echo_written
from tcbench.show.results import read_results

if TYPE_CHECKING:
    from tcbench.core.record import Selection


@command("Show cells over commits, and where they regressed.")
@options.selects("configs batch_sizes")
def history(
    *,
    results: list[str] | None = options.results_argument(default="this machine's, without those that git tracks"),
    chosen: Selection,
    threshold: str = outcome.THRESHOLD,
    allow: list[str] | None = outcome.ALLOW,
    output: Path | None = options.picture_option("Also a chart: a .png, .svg or .pdf file. Default: none."),
    format_: options.TableOrJson = options.FORMAT,
    out: Path = options.RESULTS_FOLDER,
    details: bool = options.DETAILS,
) -> None:
    """Show each cell over the commits it was measured at: images/s with its interval over trials, the change from the
    previous commit, and whether that is a regression. Commits are in order of ancestry; those that are not in the git
    repository here are in order of measurement. Commits with different machines, drivers or libraries are not
    compared: a new line begins there and gives the reason.

    Examples:
    tcbench history                                   this machine's runs
    tcbench history results/                          every run there
    tcbench history --config 'fp16*' --bs 256 -o history.png
    tcbench history results/h200 --threshold 5% --json"""
    from tcbench.analysis.verdict import Rule
    from tcbench.commands.history.history import build_history
    from tcbench.commands.history.table import blocks, notes, to_json, verdict
    from tcbench.core import git, store
    from tcbench.hardware.machine import CHECKOUT
    from tcbench.show import naming
    from tcbench.show.format import counted

    rule = Rule(outcome.threshold(threshold))
    paths, n_ignored = ([], 0) if results else local_runs(out)
    results_read = read_results(results or map(str, paths), out).records
    runs = {Path(name).name.removesuffix(store.SUFFIX) for name in results or ()}
    records = tuple(r for r in results_read if r.run_id in runs or not store.GATE_RUN_ID.fullmatch(r.run_id))
    if not records:
        raise SelectionError("only trials of gates and bisections found; `tcbench run` makes a run, or name a file")
    environments = [record.environment for record in records if record.environment is not None]
    commits = {(commit or "").removesuffix("+") for e in environments for commit in (e.project_commit, e.commit)}
    places = git.ancestry((Path.cwd(), CHECKOUT), commits)
    selected = select_cells(records, chosen.configs, chosen.batch_sizes)
    history = build_history(selected, rule, outcome.allowed_facets(allow), places)
    without_chart = bool(history.cells) and all(len(cell.points) < 2 for cell in history.cells)
    if output is not None and not without_chart:
        from tcbench.commands.history.chart import history_chart
        from tcbench.show.charts.files import save

        save(history_chart(history), output, options.ANOTHER_FILE)
    left_out = ["left out: trials of gates and bisections; name one of their files to show it"]
    left_out *= len(records) < len(results_read)
    if n_ignored:
        files = f"{counted(n_ignored, 'file')} of other machines or tracked by git"
        left_out.append(f"left out: {files}; `tcbench history {out}` shows all")
    if format_ == "json":
        typer.echo(to_json(history))
        for line in left_out:
            typer.echo(line, err=True)
        return
    console = make_console(details=details)
    console.say(*naming.simulation_lines(cell.environment for cell in history.cells), style="bold")
    for heading, table in blocks(history):
        console.table(table, heading)
    console.say(verdict(history))
    console.notes([*notes(history), *map(Caution, left_out)])
    if output is not None and without_chart:
        console.say("no chart: no cell was measured at two commits; `tcbench plot` draws runs")
    elif output is not None:
        echo_written(output)
