"""The chart of scaling over ranks: lines, the ideal ones, efficiencies, and what it says of cells without a number."""

import pytest
from factories import make_cell, make_record
from show.charts.charts import V100, assert_tidy, legend, words

from tcbench.commands.run.scaling import curves
from tcbench.commands.run.scaling_chart import scaling_chart
from tcbench.core.record import Record

CONFIGS = ("fp32", "fp16+dali", "fp16+dali+batched")


def on(ranks: int, config: str = "fp32", batch_size: int = 32) -> Record:
    rate = 100.0 * (1 + CONFIGS.index(config)) * ranks * (0.9 if ranks > 1 else 1)
    cell = make_cell(config, batch_size, ranks=ranks, device="cuda:0")
    return make_record(cell=cell, images_per_s=rate, environment=V100, noise=0.0)


@pytest.mark.long
def test_each_config_has_a_line_of_its_own_and_each_batch_size_a_row() -> None:
    records = [on(n, config, size) for size in (32, 64) for config in CONFIGS for n in (1, 2, 4, 8)]
    figure = scaling_chart([curve for curve in curves(records) if curve.kind == "weak"])
    assert_tidy(figure)
    assert legend(figure) == ["fp32", "fp16 + dali", "+ batched"]
    marks = [[line.get_marker() for line in axes.lines if line.get_marker() != "None"] for axes in figure.axes]
    assert [len(of_panel) for of_panel in marks] == [3, 3, 3, 3]  # the ideal ones have no marks
    assert len(set(marks[0])) == 3
    assert {"batch size 32 per rank", "batch size 64 per rank"} <= set(words(figure))


@pytest.mark.long
def test_strong_scaling_has_rows_of_its_own_the_longest_of_them() -> None:
    records = [on(n, "fp32", size) for size in (8, 16, 32, 64) for n in (1, 2, 4, 8)]
    figure = scaling_chart(curves(records))
    assert_tidy(figure)
    heads = [text for text in words(figure) if text.startswith("global batch ")]
    assert heads == ["global batch 64", "global batch 32"]
    assert any(" more are not drawn (choose with " in text for text in words(figure))
    assert any("Strong scaling" in text for text in words(figure))
