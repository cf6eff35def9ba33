"""The legend says what each config adds."""

import pytest
from matplotlib.patches import Patch
from show.charts.charts import TWELVE, assert_tidy, legend, run

from tcbench.commands.run.chart import throughput_chart
from tcbench.show.charts.page import ChartPage
from tcbench.show.charts.palette import legend_rows
from tcbench.show.charts.text import DPI


def test_the_legend_names_what_each_config_adds() -> None:
    figure = throughput_chart(run(TWELVE, (4,)), title="T")
    rungs = ["+ dali", "+ batched", "+ nhwc + fused", "+ static_graph"]
    assert legend(figure) == ["fp32", *rungs, "fp32 + opencv", "fp16", *rungs, "fp16 + opencv"]


def test_another_backends_configs_have_rows_of_their_own() -> None:
    configs = ["fp32", "torch/fp32", "fp32+dali", "torch/fp32+dali", "torch/bf16"]
    rows = legend_rows(configs)
    words = [[words for _, words in row] for row in rows]
    assert words == [["fp32", "+ dali"], ["torch/fp32", "+ dali"], ["torch/bf16"]]


def test_a_line_that_is_broken_goes_on_with_an_ellipsis() -> None:
    page = ChartPage("T", "", [])
    page.legend([[Patch(label=f"{'+ ' * (n > 0)}a rung with a long name {n}") for n in range(12)]])
    begins = [text.get_text() for text in page._above[-1].get_texts()][:2]
    assert [begin.partition(" ")[0] for begin in begins] == ["a", "…"]


@pytest.mark.parametrize("config", ["", " ", "+"])
def test_a_config_without_a_name_has_a_swatch(config: str) -> None:
    assert_tidy(throughput_chart(run((config,), (4,)), title="T"))


def test_a_long_name_ends_in_an_ellipsis() -> None:
    [[(_, words)], [(_, added), (_, rung)]] = legend_rows(["a" * 100_000, "fp32", "fp32" + "+b" * 50_000])
    assert words == "a" * 119 + "…"
    assert added == "fp32" and rung.startswith("+ b + b + b") and rung.endswith("b…") and len(rung) <= 122


def test_of_many_entries_only_columns_that_may_fit_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, put_together = list[int](), ChartPage._legend
    monkeypatch.setattr(
        ChartPage, "_legend", lambda self, rows, options: calls.append(1) or put_together(self, rows, options)
    )
    page = ChartPage("T", "", [])
    page.legend([[Patch(label=f"fp32 + rung {n}") for n in range(40)]])
    assert len(calls) < 6 and page._above[-1].get_window_extent().width <= page.room * DPI
