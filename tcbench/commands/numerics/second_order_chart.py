"""The output of `tcbench numerics --second-order`: the loss of SGD and K-FAC over steps and over time."""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from tcbench.commands.numerics.steps import LOSSES, SMOOTH, StepsDocument
from tcbench.show.charts.page import ChartPage
from tcbench.show.charts.palette import QUIET, RAMPS
from tcbench.show.charts.text import WORDS
from tcbench.show.tables import COUNT, Column, Table

LABELS = {"sgd": "SGD", "kfac": "K-FAC"}
_COLOURS = {"sgd": RAMPS["fp32"][3], "kfac": RAMPS["fp16"][4]}
_DASHES = {"sgd": "-", "kfac": (0, (5, 1.5))}
_PANEL = 2.8  # inches


def steps_chart(document: StepsDocument, about: Sequence[str]) -> Figure:
    """Draw the loss over steps and over time. `about` are the facts of machine and setting below the chart."""
    methods = tuple(LABELS)
    seeds = len(document.runs_of(methods[0]))
    notes = [
        " · ".join(about),
        f"Each line is one seed, as the mean of {SMOOTH} steps. Over time: by the method's median time per step, on a "
        "machine that may have been busy. Dotted: the losses whose steps the table counts.",
    ]
    page = ChartPage(
        "Steps to a loss: SGD and K-FAC", f"{seeds} seeds, each with the same weights and batches for both", notes
    )
    lines = []
    [[by_step, by_time]] = page.panels([_PANEL], 2)
    by_step.set_title("Training loss over steps", loc="left", weight="bold")
    by_time.set_title("Training loss over time", loc="left", weight="bold")
    for method in methods:
        runs = document.runs_of(method)
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


def table(document: StepsDocument) -> Table[str]:
    """Return a table with the steps to each loss for every seed, and the time of a step."""

    def step_ms(method: str) -> str:
        times_s = [run.step_time_s for run in document.runs_of(method) if run.step_time_s is not None]
        return f"{1e3 * statistics.median(times_s):.0f}" if times_s else ""

    def steps_to(loss: float) -> Column[str]:
        """Return a column with the number of steps that each seed's run needs to reach a loss."""

        def steps(method: str) -> str:
            return ", ".join(str(run.steps_to(loss) or "none") for run in document.runs_of(method))

        return Column(f"steps to {loss:g}", steps, COUNT)

    columns = (
        Column[str]("method", lambda method: LABELS[method]),
        Column[str]("learning rate", lambda method: f"{document.runs_of(method)[0].learning_rate:g}", COUNT),
        Column[str]("step, ms", step_ms, COUNT),
        *map(steps_to, LOSSES),
    )
    return Table(columns, tuple(LABELS))


def notes(document: StepsDocument) -> list[str]:
    """Return notes on how to read the table."""
    kfac, n = document.kfac, document.setting.steps
    lines = [
        f"Steps to a loss: until the mean loss of {SMOOTH} steps is at or below it, one figure per seed; none: not "
        f"reached in {n} steps. Both methods have the same steps, weights and batches. A step's time is the median.",
        f"K-FAC: damping {kfac.damping:g}, decay {kfac.decay:g}, interval {kfac.interval}.",
    ]
    for method, label in LABELS.items():
        rates = sorted(run.learning_rate for run in document.tuning if run.method == method)
        chosen = document.runs_of(method)[0].learning_rate
        tried = ", ".join(f"{rate:g}" for rate in rates)
        edge = ", at the end of the list: another may be better" if chosen in (rates[0], rates[-1]) else ""
        lines.append(f"{label}: the best learning rate of {tried} on a separate seed{edge}.")
    lines += [f"{LABELS[run.method]}, seed {run.seed}: {run.reason}" for run in document.runs if run.reason is not None]
    return lines
