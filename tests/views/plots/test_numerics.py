"""The pictures of `tcbench numerics`: drawn whatever the runs did, texts within the page and apart from each other."""

from __future__ import annotations

import pytest
from numerics_documents import make_document, make_gradients, make_run

from tcbench.analysis.numerics import Margins
from tcbench.numerics.form import Gradients
from tcbench.views.numerics import about
from tcbench.views.plots.files import save
from tcbench.views.plots.numerics_gradients import gradients_chart
from tcbench.views.plots.numerics_training import training_chart

DIVERGED = [
    make_run(
        "both", s, status="diverged", reason="diverged at step 9: x", losses=(2.0,) * 9, test_loss=None, accuracy=None
    )
    for s in range(5)
]
DOCUMENTS = {
    "usual": make_document(),
    "one seed": make_document(seeds=[0]),
    "diverged": make_document(extra=DIVERGED),
    "large gradients": make_document(gradients=make_gradients(14.0), static_scale=2.0**-6),
    "no gradients": make_document(gradients=Gradients(seed=0, layers=(), steps=())),
    "identical": make_document(extra=[make_run("both", seed, -0.0) for seed in range(5)]),
}


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_both_charts_are_drawn_and_no_text_leaves_the_page(name, tmp_path):
    document = DOCUMENTS[name]
    for place, figure in enumerate(
        (gradients_chart(document, about(document)), training_chart(document, Margins(), about(document)))
    ):
        save(figure, tmp_path / f"{place}.png")
        assert (tmp_path / f"{place}.png").stat().st_size > 20_000
        width, height = figure.canvas.get_width_height()
        for text in figure.texts:
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= width + 1 and box.y0 >= 0 and box.y1 <= height + 1, text.get_text()


def test_the_verdicts_words_stand_in_the_training_chart():
    document = DOCUMENTS["diverged"]
    shown = [text.get_text() for text in training_chart(document, Margins(), about(document)).texts]
    assert shown.count("does not") == 4
    assert shown.count("trains like fp32") == 1
    assert any(text.startswith("diverged at step 9") for text in shown)
