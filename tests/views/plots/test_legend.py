"""The legend says what each config adds."""

from __future__ import annotations

from views.plots.charts import TWELVE, legend, run

from tcbench.views import plots


def test_the_legend_names_what_each_config_adds() -> None:
    figure = plots.throughput_chart(run(TWELVE, (4,)), title="T")
    rungs = ["+ dali", "+ batched", "+ nhwc + fused", "+ static_graph"]
    assert legend(figure) == ["fp32", *rungs, "fp32 + opencv", "fp16", *rungs, "fp16 + opencv"]
