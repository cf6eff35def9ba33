"""Runs to draw, and the contents of a figure: shared by the tests of charts.

Imported from `show.charts.charts`: the suite's `pythonpath` is `tests`.
"""

import itertools
from collections.abc import Iterable, Sequence

from factories import LADDERS, make_environment, make_record
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tcbench.analysis.summary import CellSummary, summarise
from tcbench.core.record import Environment, Status

TALK = "Chainer で Tensor コア (fp16) を使いこなす"
TWELVE = (*LADDERS, "fp32+opencv", "fp16+opencv")
V100 = make_environment("tesla-v100", "Tesla V100-DGXS-16GB")
BATCHED, STATIC = LADDERS[8], LADDERS[9]


def rate(config: str, batch_size: int) -> float:
    """Something like the talk's images/s."""
    return 100 + 90 * LADDERS.index(config) if config in LADDERS else 150 + batch_size


def run(
    configs: Iterable[str] = LADDERS,
    batch_sizes: Sequence[int] = (32, 64, 128, 256),
    *,
    missing: dict[tuple[str, int], Status] | None = None,
    environment: Environment = V100,
    trials: int = 1,
    noise: float = 0.02,
    scale: float = 1.0,
) -> tuple[CellSummary, ...]:
    """The summaries of a run; `missing` cells ended otherwise than ok."""
    return summarise(
        make_record(
            config,
            size,
            status=(missing or {}).get((config, size), "ok"),
            images_per_s=scale * rate(config, size),
            noise=noise,
            trial=trial,
            run_id=environment.machine,
            environment=environment,
        )
        for trial in range(trials)
        for config in configs
        for size in batch_sizes
    )


def texts(figure: Figure) -> list[Text]:
    """Everything written in a figure, ticks outside the axes' limits left out."""
    figure.draw_without_rendering()  # matplotlib places a legend's entries, axes' names and titles when it draws
    written = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        written += [*axes.texts, axes.xaxis.label, axes.yaxis.label]
        written += [axes.title, axes._left_title, axes._right_title]  # type: ignore[attr-defined]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            shown = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            written += [label for tick in shown for label in (tick.label1, tick.label2)]
    return [text for text in written if text.get_text().strip() and text.get_visible()]


def words(figure: Figure) -> list[str]:
    """Join lines that are broken only because of the page's width."""
    return [text.get_text().strip() for text in texts(figure)]


def legend(figure: Figure) -> list[str]:
    """Row by row, as it is read."""
    entries = [text for legend in figure.legends for text in legend.get_texts()]
    boxes = [(extent(text), text.get_text()) for text in texts(figure) if text in entries]

    def place(entry: tuple[Bbox, str]) -> tuple[int, float]:
        """How many entries are above it (some versions of Matplotlib shift a line by a pixel), and its left edge."""
        return sum(box.y0 > entry[0].y1 for box, _ in boxes), entry[0].x0

    return [words for _, words in sorted(boxes, key=place)]


def extent(text: Text) -> Bbox:
    """The box of a text, in pixels, without its last half pixel and the empty lines at its end."""
    box, lines = text.get_window_extent(), text.get_text().split("\n")
    empty = len(lines) - len(text.get_text().rstrip("\n").split("\n"))
    return Bbox([[box.x0, box.y0 + box.height * empty / len(lines)], [box.x1, box.y1]]).padded(-0.5)


def assert_tidy(figure: Figure) -> None:
    """No text covers another, leaves the figure, or, in the legend, enters a panel."""
    boxes = [(text.get_text(), extent(text)) for text in texts(figure)]
    for text, box in boxes:
        inside = figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert inside and figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, f"{text!r} leaves the figure"
    for (first, a), (other, b) in itertools.combinations(boxes, 2):
        assert not a.overlaps(b), f"{first!r} covers {other!r}"
    for axes, legend in itertools.product(figure.axes, figure.legends):
        assert not axes.get_window_extent().overlaps(legend.get_window_extent()), "the legend enters a panel"


def bars(figure: Figure) -> list[Rectangle]:
    return [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, Rectangle)]
