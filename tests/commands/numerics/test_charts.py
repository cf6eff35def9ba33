"""The pictures of `tcbench numerics`: drawn whatever the runs did, texts within the page and apart from each other."""

import functools

import msgspec
import pytest
from numerics_documents import SETTING, make_document, make_gradients, make_run
from show.charts.charts import texts

from tcbench.commands.numerics.gradients_chart import gradients_chart
from tcbench.commands.numerics.judgement import Margins
from tcbench.commands.numerics.table import about
from tcbench.commands.numerics.training_chart import training_chart
from tcbench.core.numerics import TECHNIQUES, Gradients

OVERFLOW = (
    "diverged at step 0: gradients overflowed float16 at a static loss scale of 2^60; lower --scale, or use a dynamic "
    "one"
)
OVERFLOWED = [
    make_run("both", s, status="diverged", reason=OVERFLOW, losses=(2.0,), test_loss=None, accuracy=None)
    for s in range(5)
]
RUNAWAY = [
    make_run(
        name, seed, losses=tuple(10.0 ** (step * (1 + seed) / 4) for step in range(48)), test_loss=8e24 * (seed + 1)
    )
    for name in ("fp32", "neither", "both")
    for seed in range(2)
]
RUNAWAY += [make_run("scaling", seed, test_loss=loss) for seed, loss in enumerate((1e-9, 1e300))]
DOCUMENTS = {
    "usual": make_document(),
    "overflowed": make_document(extra=OVERFLOWED, static_scale=2.0**60),
    "no scale is safe": make_document(
        gradients=msgspec.structs.replace(
            make_gradients(), layers=make_gradients().layers + make_gradients(14.0).layers
        )
    ),
    "runaway": make_document(seeds=range(2), extra=RUNAWAY),
    "one step": make_document(
        seeds=[0],
        extra=[make_run(name, 0, losses=(2.3,)) for name in TECHNIQUES],
        setting=msgspec.structs.replace(SETTING, steps=1),
    ),
    "no gradients": make_document(gradients=Gradients(seed=0, layers=(), steps=())),
    "identical": make_document(extra=[make_run("both", seed, -0.0) for seed in range(5)]),
}


@functools.cache
def training(name):
    return training_chart(DOCUMENTS[name], Margins(), about(DOCUMENTS[name]))


@functools.cache
def gradients(name):
    return gradients_chart(DOCUMENTS[name], about(DOCUMENTS[name]))


DRAWN = [
    *((training, name) for name in ("overflowed", "runaway", "one step", "identical")),
    *((gradients, name) for name in ("usual", "overflowed", "no scale is safe", "one step", "no gradients")),
]


@pytest.mark.long
@pytest.mark.parametrize(("chart", "name"), DRAWN, ids=lambda value: getattr(value, "__name__", value))
def test_no_text_leaves_the_page(chart, name):
    figure = chart(name)
    written = texts(figure)
    assert written
    width, height = figure.canvas.get_width_height()
    for text in written:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= width + 1 and box.y0 >= 0 and box.y1 <= height + 1, text.get_text()


def words(figure):
    return " ".join(text.get_text() for text in texts(figure)).replace("\n", " ")


def test_a_reason_that_is_too_long_for_a_line_is_written_to_its_end():
    assert f"{OVERFLOW} (5 of 5 seeds)" in words(training("overflowed"))


@pytest.mark.long
def test_a_scale_that_overflows_is_shown_to_and_the_one_in_use_is_marked_whether_or_not_one_is_safe():
    shown = words(gradients("overflowed"))
    assert shown.count("at 2^60: zero 0.0%, subnormal 0.0%, infinite 100.0%; outline beyond the right end") == 2
    shown = words(gradients("no scale is safe"))
    assert "no scale is safe" in shown and "used: 2^16" in shown
    assert "infinite" not in words(gradients("usual")).partition("loss scale of")[2].partition("Safe")[0]


def test_a_loss_that_runs_away_has_few_ticks():
    for axes in training("runaway").axes:
        assert len(axes.get_yticks()) <= 7, axes.get_yticks()


def test_curves_of_single_steps_are_not_called_means():
    shown = words(training("one step"))
    assert "Curves: every step" in shown and "1 seed:" in shown
    assert "fp32 itself has not clearly learnt here: its loss did not fall" in shown
