"""A slide compares what the talk compared, and says what was not run."""

import pytest
from factories import make_record
from present.charts.charts import BATCHED, STATIC, assert_tidy, bars, legend, run, words

from tcbench.analysis.summary import summarise
from tcbench.core.errors import SelectionError
from tcbench.core.record import Status
from tcbench.views.slides import SLIDES, slide_chart


@pytest.mark.parametrize("slide", SLIDES)
def test_each_slide_is_tidy(slide: int) -> None:
    static_graph: dict[tuple[str, int], Status] = {(STATIC, 128): "oom", (STATIC, 256): "oom", ("fp32", 256): "oom"}
    figure = slide_chart(run(missing=static_graph), slide)
    assert_tidy(figure)
    assert words(figure)[0].startswith(f"Slide {slide}: ")


@pytest.mark.parametrize(("slide", "n_configs"), [(12, 2), (21, 3), (27, 4), (31, 5), (33, 3)])
def test_a_slide_compares_what_the_talk_compared(slide: int, n_configs: int) -> None:
    assert len(bars(slide_chart(run(batch_sizes=(32, 64)), slide))) == 2 * n_configs


def test_a_slide_knows_a_config_by_its_rungs_in_any_order() -> None:
    figure = slide_chart(run(("fp32", "fp16", "fp16+batched+nhwc+fused+dali"), (4,)), 27)
    assert len(bars(figure)) == 3


def test_best_is_the_fastest_whatever_its_dtype_and_says_what_it_is() -> None:
    records = [make_record("fp32", 4, images_per_s=40), make_record("fp16", 4, images_per_s=30)]
    records += [make_record("fp32+dali", 4, images_per_s=60), make_record(BATCHED, 4, images_per_s=50)]
    records += [make_record("fp32", 8, images_per_s=40), make_record(BATCHED, 8, images_per_s=80)]
    figure = slide_chart(summarise(records), 33)
    assert legend(figure)[2:] == ["best at 4: fp32 + dali", "best at 8: fp16 + dali + batched + nhwc + fused"]
    assert [text.split("\n")[:2] for text in words(figure) if text.startswith("best\n")] == [
        ["best", "1.50×"],
        ["best", "2.00×"],
    ]
    assert_tidy(figure)


def test_a_slide_names_the_cells_that_are_missing() -> None:
    summaries = (*run(("fp32",), (4, 8)), *run(("fp16",), (8,)))
    assert "not run: fp16 at 4" in words(slide_chart(summaries, 12))


def test_a_slide_of_which_nothing_was_run_is_one_clear_line() -> None:
    with pytest.raises(SelectionError, match="--slide 12: no results of fp32, fp16"):
        slide_chart(run(("fp32+dali",)), 12)
    with pytest.raises(SelectionError, match="--slide 13: expected one of 12, 21, 27, 31, 33"):
        slide_chart(run(), 13)
