"""A slide compares what the talk compared, and says what was not run."""

import pytest
from present.charts.charts import STATIC, assert_tidy, bars, run, words

from tcbench.core.record import Status
from tcbench.views.throughput.chart import SLIDES, slide_chart


@pytest.mark.parametrize("slide", SLIDES)
def test_each_slide_is_tidy(slide: int) -> None:
    static_graph: dict[tuple[str, int], Status] = {(STATIC, 128): "oom", (STATIC, 256): "oom", ("fp32", 256): "oom"}
    figure = slide_chart(run(missing=static_graph), slide)
    assert_tidy(figure)
    assert words(figure)[0].startswith(f"Slide {slide}: ")


def test_a_slide_knows_a_config_by_its_rungs_in_any_order() -> None:
    figure = slide_chart(run(("fp32", "fp16", "fp16+batched+nhwc+fused+dali"), (4,)), 27)
    assert len(bars(figure)) == 3
