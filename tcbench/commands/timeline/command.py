"""The command `tcbench timeline`: draw the work of input, host and GPU over time, as in the talk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.core.errors import SelectionError
from tcbench.run.inputs import select_cells
from tcbench.show import options
from tcbench.show.app import command
from tcbench.show.notes import echo_written
from tcbench.show.results import newest_timeline, output_path

if TYPE_CHECKING:
    from tcbench.core.record import Selection


def window(text: str | None) -> tuple[float, float] | None:
    """Parse begin and end of --zoom in ms. Raises SelectionError."""
    if text is None:
        return None
    begin, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(begin), float(end)
    except ValueError:
        raise SelectionError(f"--zoom {text}: expected BEGIN:END in ms, e.g. --zoom 20:60") from None


@command("Draw timelines: input, CPU and GPU, step by step.")
@options.selects("batch_sizes configs")
def timeline(
    files: list[Path] | None = typer.Argument(
        None,
        metavar="FILE",
        help="Timelines of `tcbench profile`, records of a run, or Nsight Systems' report or SQLite, or a trace of "
        "PyTorch's profiler. Default: the "
        "newest profile.",
    ),
    output: Path | None = options.picture_option(),
    zoom: str | None = options.GENERAL.option(
        "--zoom BEGIN:END",
        "Only this part, in ms on the picture's time axis. Default: whole steps.",
        takes="two numbers of ms, ascending",
        read=window,
    ),
    steps: int | None = options.GENERAL.option(
        "--steps N", "Steps of the slowest cell to draw. Default: 3.", within=(1, None)
    ),
    step: int | None = options.GENERAL.option(
        "--step N", "Begin with the step of this number. Default: the first.", within=(0, None)
    ),
    *,
    chosen: Selection,
    out: Path = options.RESULTS_FOLDER,
) -> None:
    """Draw what ran when: IO threads, the CPU's phases, the GPU's work and its gaps; several cells below each other.

    Examples:
    tcbench timeline                                  the newest profile, three steps
    tcbench timeline fp32.json.gz fp16.json.gz        below each other, on one time scale
    tcbench timeline profile.json.gz --zoom 20:60 -o zoomed.svg
    tcbench timeline profile.json.gz --step 42
    tcbench timeline run.jsonl --config 'fp32*' --bs 8  the phases of a run's steps"""
    from tcbench import tracing
    from tcbench.commands.timeline.chart import Caption, timeline_chart
    from tcbench.core.timeline import Timeline
    from tcbench.run.training_traces import judge_file
    from tcbench.show.charts.files import save
    from tcbench.show.trace_report import figures, sentence
    from tcbench.tracing.training_timeline import trace_timeline

    files = files or [newest_timeline(out)]
    timelines, captions = list[Timeline](), list[Caption | None]()
    for file in files:
        if tracing.is_training(file):
            judged = judge_file(file)
            timelines.append(trace_timeline(judged.trace, judged.verdict, file.name))
            captions.append(Caption(figures(judged.verdict), sentence(judged.verdict)))
        else:
            timelines += tracing.read(file)
            captions += [None] * (len(timelines) - len(captions))
    if chosen.configs or chosen.batch_sizes:
        records = [timeline.record for timeline in timelines if timeline.record]
        selected = select_cells(records, chosen.configs, chosen.batch_sizes)
        timelines, captions = [timeline for timeline in timelines if timeline.record in selected], []
    output = output_path(output, files, "timeline.png")
    save(timeline_chart(timelines, window(zoom), steps, step=step, captions=captions), output, options.ANOTHER_FILE)
    echo_written(output)
