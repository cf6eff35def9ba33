"""`tcbench diff`: breaks a step's change down by phase, layer and kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.core.errors import NotComparableError, SelectionError
from tcbench.core.text import plain
from tcbench.run.inputs import select_cells, split_timelines
from tcbench.show import options
from tcbench.show.app import command
from tcbench.show.console import make_console
from tcbench.show.next_steps import cell_step
from tcbench.show.notes import Caution, echo_written
from tcbench.show.results import read_files
from tcbench.show.sides import Labels

if TYPE_CHECKING:
    from tcbench.commands.diff.differences import Diff
    from tcbench.core.record import Record, Selection

_MOST_CELLS = 8
"""Limit of pairs that are shown; for more, --config or --bs must choose."""


@command("Show why a step changed: phase by phase, layer by layer, kernel by kernel.")
@options.selects("configs batch_sizes")
def diff(
    *,
    base: str = typer.Argument(
        metavar="BASE",
        help="A timeline of `tcbench profile`, a trace of PyTorch's profiler or Nsight Systems, a file of records, or "
        "the id of a run.",
    ),
    current: str | None = typer.Argument(None, metavar="CURRENT", help="The same. Default, with --to: BASE itself."),
    chosen: Selection,
    to: str | None = options.GENERAL.option(
        "--to CONFIG",
        "CURRENT's config, if it differs from BASE's. Default: BASE's.",
        takes="a config of CURRENT; --config names one of BASE",
    ),
    top: int = options.GENERAL.option("--top N", "Number of parts to show of each kind.", 10, within=(1, None)),
    output: Path | None = options.picture_option("Also a chart: a .png, .svg or .pdf file. Default: none."),
    format_: options.TableOrJson = options.FORMAT,
    out: Path = options.RESULTS_FOLDER,
    details: bool = options.DETAILS,
) -> None:
    """Break down the change of a step: the parts that appeared, went, grew and shrank, in milliseconds, as a ratio, and
    as a share of the step's change. With the rest, the shares add up to 100%. Records show phases, with intervals if
    both sides have two trials; profiles show layers and kernels too. Cells are matched by config and batch size; if
    each side has one cell, these two are compared. Exit code 5 if the sides did not train the same.

    Examples:
    tcbench diff before.json.gz after.json.gz           phases, layers, kernels
    tcbench diff before.jsonl after.jsonl --config fp32 --bs 8
    tcbench diff RUN --config fp32 --to fp32+nhwc       what a rung changed
    tcbench diff before.jsonl after.jsonl -o diff.png   a waterfall"""
    from tcbench.commands.diff.table import head, headline, notes, simulation_notes, tables, to_json
    from tcbench.core import store

    sizes, configs = chosen.batch_sizes, chosen.configs
    if current is None and to is None:
        raise SelectionError("expected two results: tcbench diff BASE CURRENT, or BASE --config CONFIG --to CONFIG")
    if to is not None and len(configs) != 1:
        raise SelectionError(f"--to {to}: expected the config to compare it with: --config CONFIG --to {to}")
    paths = [store.resolve(name, out) for name in (base, current or base)]
    records, timelines = split_timelines(paths)
    if records and timelines:
        raise SelectionError(
            f"{records[0]} holds records and {timelines[0]} a timeline; expected two of the same kind: "
            "`tcbench profile` makes timelines"
        )
    if timelines:
        if configs or sizes:
            raise SelectionError("--config and --bs choose cells of records; a profile has one cell")
        diffs, missing = _timeline_diffs(paths), list[str]()
    else:
        diffs, missing = _record_diffs(paths, configs, to, sizes)
    labels = Labels(plain(base), plain(current or base))
    if output is not None:
        from tcbench.commands.diff.chart import diff_chart
        from tcbench.show.charts.files import save

        save(diff_chart(diffs, labels), output, options.ANOTHER_FILE)
    if format_ == "json":
        typer.echo(to_json(diffs, labels, missing))
        return
    console = make_console(details=details)
    console.say(*simulation_notes(diffs), style="bold")
    for pair in diffs:
        console.say(*head(pair, labels).splitlines())
        console.say(headline(pair), style="bold")
        for title, table in tables(pair, top):
            console.say("", title)
            console.print(table)
        console.say("")
    console.notes([*map(Caution, missing), *notes(diffs, bool(timelines))])
    if output is not None:
        echo_written(output)
    cell, environment = diffs[0].base.cell, diffs[0].base.environment
    if not timelines and cell is not None:  # layers and kernels are in profiles alone
        machine = environment.machine if environment else None
        says = "then profile the other side; `tcbench diff` of both shows layers"
        step = cell_step("profile", cell, says, out=out, threads=True, machine=machine)
        console.offer(filter(None, [step]))


def _timeline_diffs(paths: Sequence[Path]) -> list[Diff]:
    """Return the diff of two traces of another profiler, or of each rank's timelines. Raises NotComparableError if the
    numbers of ranks differ, and SelectionError if tcbench recorded one side alone."""
    from tcbench import tracing
    from tcbench.commands.diff.differences import diff_timelines
    from tcbench.commands.diff.trace_differences import diff_traces
    from tcbench.run.training_traces import judge_file

    foreign = [path for path in paths if tracing.is_training(path)]
    if len(foreign) == len(paths):
        return [diff_traces(*map(judge_file, paths))]
    if foreign:
        raise SelectionError(
            f"{foreign[0]} is a trace of another profiler and the other file is not; expected two of the same kind"
        )
    base, current = map(tracing.read, paths)
    if len(base) != len(current):
        raise NotComparableError(
            f"{paths[0]} holds {len(base)} timelines and {paths[1]} {len(current)}: not the same number of ranks"
        )
    return list(map(diff_timelines, base, current))


def _record_diffs(
    paths: Sequence[Path], configs: Sequence[str], to: str | None, sizes: Sequence[int] | None
) -> tuple[list[Diff], list[str]]:
    """Return the diffs of all pairs of cells, and a line for each cell without a partner. `to`: CURRENT's config."""
    from tcbench.commands.diff.differences import diff_records

    selections = zip(paths, (configs, configs if to is None else (to,)), strict=True)
    base, current = (_cells(path, select_cells(read_files([path]).records, names, sizes)) for path, names in selections)
    if len(base) == len(current) == 1:
        return [diff_records(*base.values(), *current.values())], []
    if to is not None:  # one config on each side, so the cells are paired by batch size
        base, current = ({(configs[0], *key[1:]): side[key] for key in side} for side in (base, current))
    pairs = [key for key in base if key in current]
    if not pairs:
        raise NotComparableError(
            f"{paths[0]} and {paths[1]} have nothing in common: no config at the same batch size; choose two to "
            "compare with --config and --to"
        )
    if len(pairs) > _MOST_CELLS:
        raise SelectionError(
            f"{len(pairs)} cells in common, more than {_MOST_CELLS}: choose some with --config or --bs"
        )
    missing = [
        f"{records[0].cell.label}: only in {paths[place]}"
        for place, (side, other) in enumerate(((base, current), (current, base)))
        for key, records in side.items()
        if key not in other
    ]
    return [diff_records(base[key], current[key]) for key in pairs], missing


def _cells(path: Path, records: Sequence[Record]) -> dict[tuple[str, int, int], list[Record]]:
    """Return the records of each cell, by the cell's name. Raises SelectionError if two cells share the name."""
    from tcbench.analysis.summary import group_by_cell

    cells: dict[tuple[str, int, int], list[Record]] = {}
    for (_, cell), cell_records in group_by_cell(records).items():
        if cell.name in cells:
            raise SelectionError(f"{path}: {cell.label} in several settings or on several machines; name one run")
        cells[cell.name] = cell_records
    return cells
