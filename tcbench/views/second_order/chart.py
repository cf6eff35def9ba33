"""The loss over steps and over time, by SGD and by K-FAC."""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from tcbench.analysis.numerics.steps import LOSSES, SMOOTH, StepsDocument
from tcbench.present.charts.page import Page
from tcbench.present.charts.palette import QUIET, RAMPS
from tcbench.present.charts.text import WORDS
from tcbench.views.second_order.table import LABELS

_COLOURS = {"sgd": RAMPS["fp32"][3], "kfac": RAMPS["fp16"][4]}
_DASHES = {"sgd": "-", "kfac": (0, (5, 1.5))}
_PANEL = 2.8  # inches


def steps_chart(document: StepsDocument, about: Sequence[str]) -> Figure:
    """`about`: the small print's facts of machine and setting."""
    methods = tuple(LABELS)
    seeds = len(document.of(methods[0]))
    notes = [
        " · ".join(about),
        f"Each line is one seed's, the mean of {SMOOTH} steps. Over time: the method's median time per step, on a "
        "machine that may have been busy. Dotted: the losses whose steps the table counts.",
    ]
    page = Page(
        "Steps to a loss: SGD and K-FAC", f"{seeds} seeds, each with the same weights and batches for both", notes
    )
    lines = []
    [[by_step, by_time]] = page.panels([_PANEL], 2)
    by_step.set_title("Training loss over steps", loc="left", weight="bold")
    by_time.set_title("The same over time", loc="left", weight="bold")
    for method in methods:
        runs = document.of(method)
        style: dict[str, Any] = {"color": _COLOURS[method], "linestyle": _DASHES[method], "linewidth": 1.5}
        label = f"{LABELS[method]}, learning rate {runs[0].learning_rate:g}"
        lines.append(Line2D([], [], label=label, **style))
        times = [run.step_time_s for run in runs if run.step_time_s is not None]
        for run in runs:
            steps = range(SMOOTH, SMOOTH + len(run.smooth))
            panels = [(by_step, 1.0)] + ([(by_time, statistics.median(times))] if times else [])
            for axes, scale in panels:
                axes.plot([step * scale for step in steps], run.smooth, **style)
    page.legend([lines], handlelength=3)
    for axes, words in ((by_step, "step"), (by_time, "seconds of training")):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(LogLocator(subs=()))
        axes.set_xlabel(words, size=WORDS)
        axes.set_xlim(left=0)
        for loss in LOSSES:
            axes.axhline(loss, color=QUIET, linewidth=0.8, linestyle=":", zorder=0)
    return page.settle()
