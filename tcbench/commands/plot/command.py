"""The command `tcbench plot`: draw records as charts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from tcbench.core.errors import SelectionError, TcbenchError
from tcbench.run.inputs import match_configs, runs_by_age
from tcbench.show import options
from tcbench.show.app import command, command_line, given_words
from tcbench.show.notes import echo_written
from tcbench.show.results import output_path, read_results

if TYPE_CHECKING:
    from tcbench.core.record import Record


@command("Draw results as the talk does.")
def plot(
    context: typer.Context,
    results: list[str] | None = options.RESULTS,
    output: Path | None = options.picture_option(),
    kind: Literal["throughput", "ladder", "networks", "scaling"] | None = options.GENERAL.option(
        "--kind KIND", "throughput, ladder, networks or scaling. Default: throughput; networks where a run has several."
    ),
    slide: int | None = options.GENERAL.option(
        "--slide N",
        "One of the talk's comparisons: 12, 21, 27, 31 or 33. Default: the chart of --kind.",
        takes="one of 12, 21, 27, 31, 33",
        holds=lambda n: n in (12, 21, 27, 31, 33),
    ),
    panels: Literal["setting", "machine"] = options.GENERAL.option(
        "--by WHAT",
        "setting: a panel per machine, image size, input, ...; machine: these side by side, a panel per config.",
        "setting",
    ),
    config: list[str] | None = options.GENERAL.option(
        "--config GLOB",
        "Configs by name or glob; with --by machine also best, each machine's fastest; separate with commas "
        "or repeat --config. Default: all; with --by machine the base (fp32) and best.",
        takes="configs by name or glob; with --by machine `best`",
        read=options.config_names,
    ),
    out: Path = options.RESULTS_FOLDER,
) -> None:
    """Draw results as the talk does: bars by batch size, one colour per config, 'Better' pointing up.

    Examples:
    tcbench plot                                      the newest run's throughput
    tcbench plot results/*/naruse2018-*.jsonl -o talk.svg
    tcbench plot --slide 33 -o summary.png            the talk's summary: fp32, fp16, and the fastest config
    tcbench plot --kind ladder -o ladder.pdf          the gain of each rung
    tcbench plot --kind scaling -o scaling.png        throughput and efficiency against ranks
    tcbench plot results --by machine --config fp32,best    machines side by side"""
    from tcbench.show.charts.files import save

    if panels == "machine" and (kind not in (None, "throughput") or slide is not None):
        raise SelectionError("--by machine draws throughput; omit --slide and any other --kind")
    if config and slide is not None:
        raise SelectionError(f"--slide {slide} has its own configs; omit --config")
    configs = options.config_names(config)
    draw = functools.partial(_draw, kind=kind, slide=slide, panels=panels, configs=configs)
    inputs = read_results(results, out)
    try:
        figure = draw(inputs.records)
    except SelectionError as error:
        drawable_run = _newest_drawable(inputs.paths if results else [out], draw)
        if drawable_run is None:
            raise
        suggestion = command_line("plot", str(drawable_run), *given_words(context, without=("results",)))
        raise SelectionError(f"{error}; this run can be drawn: {suggestion}") from None
    name = "machines" if panels == "machine" else f"slide-{slide}" if slide is not None else kind or "throughput"
    output = output_path(output, inputs.paths, f"{name}.png")
    save(figure, output, options.ANOTHER_FILE)
    echo_written(output)


def _draw(
    records: Sequence[Record], *, kind: str | None, slide: int | None, panels: str, configs: Sequence[str]
) -> Any:
    """Draw the figure that the options select. Raises SelectionError if the records lack what it shows."""
    from tcbench.analysis.summary import base_config, summarise
    from tcbench.commands.plot.ladder_chart import ladder_chart
    from tcbench.commands.run.chart import machines_chart, slide_chart, throughput_chart
    from tcbench.commands.run.networks_chart import network_results, networks_chart
    from tcbench.commands.run.scaling import curves
    from tcbench.commands.run.scaling_chart import scaling_chart

    summaries = summarise(records)
    measured = list(dict.fromkeys(summary.cell.config for summary in summaries))
    if configs and panels == "setting":
        matching = match_configs(configs, measured)
        summaries = tuple(summary for summary in summaries if summary.cell.config in matching)
        records = tuple(record for record in records if record.cell.config in matching)
    if panels == "machine":
        return machines_chart(summaries, _compared_configs(configs, measured, base_config(summaries)))
    if slide is not None:
        return slide_chart(summaries, slide)
    if kind == "ladder":
        return ladder_chart(summaries)
    one_scenario = len({summary.cell.scenario for summary in summaries}) == 1
    if kind == "networks" or (kind is None and one_scenario and network_results(summaries)):
        return networks_chart(summaries)
    if kind == "scaling":
        return scaling_chart(curves(records))
    return throughput_chart(summaries)


def _newest_drawable(paths: Sequence[Path], draw: Callable[[Sequence[Record]], Any]) -> Path | None:
    """Return the newest run, out of several in `paths`, from which `draw` can draw its figure. None if there is only
    one run, or if `draw` fails for all of the 20 newest."""
    from tcbench.core import store

    runs = [run for path in paths for run in runs_by_age(path) or [path]]
    for path in runs[:20] if len(runs) > 1 else ():  # more would take too long
        with contextlib.suppress(TcbenchError):
            draw(store.current(store.read([path]).records))
            return path
    return None


def _compared_configs(configs: Sequence[str], measured: Sequence[str], base: str) -> list[str]:
    """Return the configs for --by machine: the measured configs that match `configs`; if that is empty, the base, if it
    ran, and "best". Raises SelectionError for a name without a match."""
    if not configs:
        return [*(config for config in measured if config == base), "best"]
    chosen = (["best"] if name == "best" else match_configs([name], measured) for name in configs)
    return list(dict.fromkeys(config for names in chosen for config in names))
