"""Networks stand beside each other in one chart and one table: the base and the best of each."""

import pytest
from factories import make_cell, make_record
from show.charts.charts import assert_tidy, bars, legend, words

from tcbench.analysis.summary import CellSummary, summarise
from tcbench.commands.run.networks_chart import network_results, networks_chart
from tcbench.engine.models import MODELS

BEST = "bf16+batched+nhwc+fused+static_graph"
RATES = {"fp32": 10.0, "fp32+nhwc": 20.0, BEST: 30.0}


def summaries(*models: str, failed: tuple[str, ...] = ()) -> tuple[CellSummary, ...]:
    return summarise(
        make_record(
            cell=make_cell(config, 8, model=model, image_size=64),
            images_per_s=rate / (place + 1),
            status="failed" if model in failed else "ok",
        )
        for place, model in enumerate(models)
        for config, rate in RATES.items()
    )


def test_a_result_has_the_networks_counts_its_base_and_its_best() -> None:
    alexnet, vgg = network_results(summaries("alexnet", "vgg16"))
    assert (alexnet.model, alexnet.parameters, alexnet.batch_size) == ("alexnet", 61_100_840, 8)
    assert vgg.macs_per_image == MODELS["vgg16"].macs("v1", 64, 1000)
    assert (vgg.base.cell.config, vgg.best.cell.config) == ("fp32", BEST)
    assert vgg.speedup.value == pytest.approx(3, rel=0.02)


def test_one_network_is_not_beside_another() -> None:
    assert network_results(summaries("resnet50")) == ()


def test_a_network_that_failed_keeps_its_place_without_figures() -> None:
    alexnet, vgg = network_results(summaries("alexnet", "vgg16", failed=("vgg16",)))
    assert alexnet.base is not None
    assert (vgg.base, vgg.best, vgg.speedup) == (None, None, None)


@pytest.mark.parametrize("models", [("alexnet", "vgg16"), tuple(MODELS)])
def test_the_chart_is_tidy_and_has_two_bars_per_network(models: tuple[str, ...]) -> None:
    figure = networks_chart(summaries(*models))
    assert_tidy(figure)
    assert len(bars(figure)) == 2 * len(models)
    assert legend(figure) == ["fp32", BEST.replace("+", " + ")] or len(legend(figure)) == 2
    (axes,) = figure.axes
    assert [label.get_text().split("\n")[0] for label in axes.get_xticklabels()] == list(models)
    assert any("3.0" in text or "×3" in text or "3×" in text for text in words(figure))
