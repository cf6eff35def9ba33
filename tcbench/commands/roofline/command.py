"""The command `tcbench roofline`: compare phases and layers with the machine's ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.run.inputs import select_cells
from tcbench.show import options
from tcbench.show.app import command
from tcbench.show.console import make_console, stages
from tcbench.show.notes import echo_written
from tcbench.show.results import output_path, read_results

if TYPE_CHECKING:
    from tcbench.analysis.summary import CellSummary
    from tcbench.core.record import Selection


@command("Show phases and layers under the machine's roofline.")
@options.selects("batch_sizes configs")
def roofline(
    *,
    results: list[str] | None = options.results_argument(
        ", or profiles. Profiles named with records add the times of layers"
    ),
    output: Path | None = options.picture_option(),
    chosen: Selection,
    all_cells: bool = options.CELLS.option(
        "--all", "Show every cell. Default: the base and the fastest of each precision, for each batch size."
    ),
    fresh: bool = options.CELLS.option("--fresh", "Measure the ceilings again, ignoring cached ones."),
    layers: bool = options.OUTPUT.option("--layers", "Also show every layer."),
    details: bool = options.DETAILS,
    format_: options.TableOrJson = options.FORMAT,
    out: Path = options.RESULTS_FOLDER,
) -> None:
    """Compare the FLOPs, bytes and achieved rates of each phase and layer with the machine's ceilings. These are the
    rates of a matrix product and a copy, measured the first time (up to a minute) and cached; for a GPU that is not
    here, its published peaks.

    S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.

    Examples:
    tcbench roofline                                  the newest run
    tcbench roofline results/*/cpu-*.jsonl --config fp32 --bs 8 -o fp32.svg
    tcbench roofline profile.json.gz --layers         with the time of each layer"""
    from tcbench.analysis.summary import group_by_code, summarise
    from tcbench.commands.roofline import table
    from tcbench.commands.roofline.chart import roofline_chart
    from tcbench.commands.roofline.roofline import UNKNOWN, base_and_fastest, cell_roofline, highest_rates
    from tcbench.run import ceilings
    from tcbench.show.charts.files import save

    def device_of(summary: CellSummary) -> tuple[str | None, str, int]:
        return summary.machine, summary.cell.device, summary.cell.threads

    inputs = read_results(results, out, "profiles")
    summaries = select_cells(_with_known_work(summarise(inputs.records)), chosen.configs, chosen.batch_sizes)
    rooflines, groups = [], group_by_code(inputs.records)
    for on_device in grouped((device_of(summary), summary) for summary in summaries).values():
        without_roof = [
            cell_roofline(summary, [r for r in groups[summary.key] if r.status == "ok"], UNKNOWN, inputs.timelines)
            for summary in on_device
        ]
        with stages(quiet=False) as advance:
            limits = ceilings.find_ceilings(on_device[0], highest_rates(without_roof), fresh=fresh, progress=advance)
        rooflines += [replace(cell, ceilings=limits) for cell in without_roof]
    rooflines.sort(key=lambda cell: summaries.index(cell.summary))
    output = output_path(output, inputs.paths, "roofline.png")
    save(roofline_chart(rooflines, all_cells=all_cells), output, options.ANOTHER_FILE)
    if format_ == "json":
        typer.echo(table.to_json(rooflines))
        return
    console = make_console(details=details)
    console.say(*map(table.headline, dict.fromkeys(cell.ceilings for cell in rooflines)), "")
    pairs = base_and_fastest(rooflines)
    shown = rooflines if all_cells else list({cell.summary.key: cell for pair in pairs for cell in pair}.values())
    console.table(table.phases_table(shown))
    for cell in shown if layers else ():
        console.table(table.layers_table(cell), cell.summary.cell.label)
    console.notes(table.notes(shown, len(rooflines), layers=layers))
    echo_written(output)


def _with_known_work(summaries: Sequence[CellSummary]) -> list[CellSummary]:
    """Return the measured cells with known layers or declared work. Raises SelectionError if there are none."""
    from tcbench.engine.api import builds_models, model_of

    measured = [s for s in summaries if s.images_per_s is not None]
    usable = [s for s in measured if model_of(s.cell) or s.flops]
    if measured and not usable and not any(builds_models(s.cell.backend) for s in measured):
        raise SelectionError(
            f"{measured[0].cell.config} declares no FLOPs; declare them with own.step(..., flops=..., bytes=...) "
            "(docs/own-step.md), or see where the time goes with `tcbench explain`"
        )
    if measured and not usable:
        model = f"{measured[0].cell.model} {measured[0].cell.variant}, {measured[0].cell.image_size} px"
        raise SelectionError(f"the layers of {model} are unknown; `tcbench list` shows known models")
    if not usable:
        raise SelectionError("no measured cell to show here; measure some with `tcbench run`")
    return usable
