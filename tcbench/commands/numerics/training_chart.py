"""Charts of training runs: the loss of each technique, its ratio to fp32's, and the final differences with their
margins. Knows nothing of how a verdict is reached."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from tcbench.analysis.stats import Interval
from tcbench.commands.numerics import judgement
from tcbench.commands.numerics.equivalence import Equivalence
from tcbench.commands.numerics.judgement import Margins, TechniqueVerdict, Word
from tcbench.core.numerics import ALL_TECHNIQUES, BASE, ONE_RANK, Document
from tcbench.show.charts.page import ChartPage, put
from tcbench.show.charts.palette import GAIN, GAIN_PALE, INK, LOSS, QUIET, RAMPS
from tcbench.show.charts.text import DPI, LEGEND, SMALL, WORDS, drawable, shortened, text_width, wrapped

_PANEL, _ROW = 2.6, 0.27  # inches


def _line(colour: str, dashes: Any = "-", width: float = 1.6) -> dict[str, Any]:
    """Return the style of a technique's line: colour and dashes, so that it can be told apart without colour."""
    return {"color": colour, "linestyle": dashes, "linewidth": width}


_STYLES = {
    BASE: _line(RAMPS["fp32"][3], "-", 2.2),
    "neither": _line(RAMPS["fp16"][4]),
    "scaling": _line(RAMPS["fp16"][1], (0, (6, 2))),
    "masters": _line(RAMPS["fp16"][2], (0, (2, 1.5))),
    "both": _line(GAIN, (0, (7, 2, 1.5, 2))),
    "dynamic": _line(RAMPS["other"][4], (0, (1, 1.6))),
    "bf16": _line(RAMPS["bf16"][2], (0, (4, 1, 1, 1, 1, 1))),
}
_STYLES |= {
    ONE_RANK: _STYLES[BASE],
    "ranks": _STYLES["both"],
    "no-warm-up": _STYLES["neither"],
    "unscaled": _STYLES["scaling"],
    "own-batch": _STYLES["dynamic"],
}
_WORD_COLOURS: dict[Word, str] = {
    "trains like fp32": GAIN,
    "trains like one rank": GAIN,
    "does not": LOSS,
    "undecided": QUIET,
}


def training_chart(document: Document, margins: Margins, about: Sequence[str]) -> Figure:
    """Draw the runs of a document. `about` are the facts of machine and setting below the chart."""
    techniques, base = judgement.techniques_run(document), document.setting.base
    owner = "fp32's" if base.name == BASE else "that of one rank"
    judged = judgement.verdicts(document, margins)
    nothing = judgement.not_learnt(document)
    seeds = len({run.seed for run in document.runs})
    window = max(1, document.setting.steps // 24)
    curves = "every step" if window == 1 else f"means of {window} steps"
    seeds_said = (
        "1 seed: the same weights and batches for every technique; one seed has no intervals"
        if seeds == 1
        else f"{seeds} seeds, each with the same weights and batches for every technique; bands and whiskers: "
        "intervals over seeds"
    )
    notes = [
        " · ".join(about),
        *([f"{nothing}."] if nothing else []),
        f"Curves: {curves}, 95% intervals; a curve that ends early diverged. Below: 90% intervals "
        f"of the paired difference; a technique is like {base.label} if it is within {margins.loss:.0%} of its test "
        f"loss and {100 * margins.accuracy:g} points of its accuracy (shaded), by two one-sided tests at 5%.",
    ]
    many = document.setting.ranks > 1
    title = f"Do {document.setting.ranks} ranks train like one?" if many else "Do fp16 and bf16 train like fp32?"
    page = ChartPage(title, seeds_said, notes)
    page.legend([[Line2D([], [], label=t.label, **_STYLES[t.name]) for t in techniques]], handlelength=4)
    [losses, ratios], forest = page.panels([_PANEL, _ROW * max(1, len(judged))], 2)
    losses.set_title("Training loss", loc="left", weight="bold")
    ratios.set_title(f"Training loss over {owner}, same seed", loc="left", weight="bold")
    axis: dict[str, Any] = {"window": window, "steps": document.setting.steps}
    _curves(losses, {t.name: judgement.loss_curve(document, t.name, window) for t in techniques}, bands=False, **axis)
    ratios.axhspan(1 / (1 + margins.loss), 1 + margins.loss, color=GAIN_PALE, alpha=0.45, linewidth=0, zorder=0)
    ratio_curves = {t.name: judgement.ratio_curve(document, t.name, window) for t in techniques if t != base}
    _curves(ratios, ratio_curves, bands=True, **axis)
    ratios.axhline(1, color=_STYLES[base.name]["color"], linewidth=1.0)
    page.heading(forest[0], "At the end, on held-out images")
    _differences(forest[0], [v.loss for v in judged], judged, margins.loss, of_loss=True)
    _differences(forest[1], [v.accuracy for v in judged], judged, margins.accuracy, of_loss=False)
    _write_verdicts(forest[0], judged)
    page.settle()
    for axes, begin in ((losses, 0.07), (ratios, 0.56)):  # no verdicts stand beside these
        box = axes.get_position()
        axes.set_position((begin, box.y0, 0.42, box.height))
    room = (forest[1].bbox.x1 - forest[0].bbox.x0) / DPI - 0.1
    for i, verdict in enumerate(judged):
        if verdict.loss is None:
            _write_reason(forest[0], i + 0.5, verdict.reason, room)
    return page.figure


def _write_verdicts(axes: Axes, judged: Sequence[TechniqueVerdict]) -> None:
    """Write each technique's name and verdict to the left of the axes."""
    names = [ALL_TECHNIQUES[verdict.technique].label for verdict in judged]
    axes.set_yticks([i + 0.5 for i in range(len(judged))], [v.word for v in judged], size=LEGEND, weight="bold")
    axes.tick_params(axis="y", pad=10)
    for text, verdict in zip(axes.get_yticklabels(), judged, strict=True):
        text.set_color(_WORD_COLOURS[verdict.word])
    offset = 72 * max((text_width(verdict.word, LEGEND, bold=True) for verdict in judged), default=1.0) + 22
    for i, name in enumerate(names):
        coordinates = axes.get_yaxis_transform()
        put(axes, name, (0, i + 0.5), (-offset, 0), ha="right", coordinates=coordinates, size=LEGEND)


def _write_reason(axes: Axes, place: float, reason: str, room: float) -> None:
    """Write a reason in place of intervals, in smaller type if it needs two lines."""
    lines, size = wrapped(drawable(reason), WORDS, room), WORDS
    if len(lines) > 1:
        size = SMALL
        first, *rest = wrapped(drawable(reason), size, room)
        lines = [first, *([shortened(" ".join(rest), size, room)] if rest else [])]
    style = {"coordinates": axes.get_yaxis_transform(), "size": size, "linespacing": 1.05}
    put(axes, "\n".join(lines), (0, place), (4, 0), ha="left", color=QUIET, **style)


def _curves(axes: Axes, curves: dict[str, tuple[Interval, ...]], *, bands: bool, window: int, steps: int) -> None:
    """Draw a curve per technique with a point per `window` steps; a cross marks one that ends before `steps`. With
    `bands`, intervals are drawn too."""
    for name, points in curves.items():
        line = _STYLES[name]
        x = [(i + 0.5) * window for i in range(len(points))]
        if bands:
            lows, highs = [point.low for point in points], [point.high for point in points]
            axes.fill_between(x, lows, highs, color=line["color"], alpha=0.16, linewidth=0)
        y = [point.value for point in points]
        axes.plot(x, y, **line)
        if points and x[-1] < steps - 1.5 * window:
            axes.plot(x[-1:], y[-1:], marker="x", color=line["color"], markersize=6, markeredgewidth=1.8)
    axes.set_yscale("log")
    axes.set_xlim(0, steps)
    axes.set_xlabel("step", size=WORDS)
    axes.grid(visible=False, axis="x")
    # The axis covers everything that was drawn, but cuts off a band that is far wider than all curves.
    losses = [point.value for points in curves.values() for point in points if 0 < point.value < math.inf] or [1.0]
    low, high = max(axes.get_ylim()[0], min(losses) / 3), min(axes.get_ylim()[1], max(losses) * 3)
    axes.set_ylim(low, high)
    round_values = MaxNLocator(5, steps=[1, 2, 5, 10])
    axes.yaxis.set_major_locator(round_values if high / low < 50 else LogLocator(numticks=5))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:.4g}")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _differences(
    axes: Axes, tests: Sequence[Equivalence | None], judged: Sequence[TechniqueVerdict], margin: float, of_loss: bool
) -> None:
    """Draw an interval per technique, in percent or points; beyond 1000% or 100 points it ends in an arrow."""
    edge = 100 * margin
    most = max(1000.0 if of_loss else 100.0, edge)

    def shown(difference: float) -> float:
        return max(-most, min(most, 100 * (judgement.relative(difference) if of_loss else difference)))

    ends = [edge * 1.6]
    for i, (test, verdict) in enumerate(zip(tests, judged, strict=True)):
        if test is None:
            continue
        colour = _STYLES[verdict.technique]["color"]
        if math.isfinite(test.low) and math.isfinite(test.high):
            axes.plot([shown(test.low), shown(test.high)], [i + 0.5] * 2, color=colour, linewidth=2.4)
            ends += [abs(shown(test.low)), abs(shown(test.high))]
        beyond = abs(shown(test.mean)) == most
        marker = "o" if not beyond else ">" if test.mean > 0 else "<"
        axes.plot([shown(test.mean)], [i + 0.5], marker=marker, markersize=4.5, color=colour)
        ends.append(abs(shown(test.mean)))
    axes.axvspan(-edge, edge, color=GAIN_PALE, alpha=0.45, linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    reach = 1.15 * max(ends)  # so that numbers at the ends of neighbouring axes stay apart
    axes.set_xlim(-reach, reach)
    axes.set_ylim(len(judged), 0)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:+.4g}{'%' if of_loss else ''}" if v else "0"))
    axes.grid(visible=False, axis="y")
    axes.spines[:].set_visible(False)
    axes.set_xlabel("test loss, difference" if of_loss else "accuracy, difference in points", size=WORDS)
