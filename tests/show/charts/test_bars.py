"""The talk's chart holds what it should, and nothing in it covers anything else."""

import pytest
from factories import LADDERS, make_measurement, make_record
from hypothesis import given, settings
from hypothesis import strategies as st
from show.charts.charts import STATIC, TWELVE, assert_tidy, bars, run, words

from tcbench.analysis.summary import summarise
from tcbench.commands.run.chart import throughput_chart
from tcbench.core.record import STATUSES
from tcbench.show.format import number


@pytest.mark.parametrize(
    ("configs", "batch_sizes"),
    [
        (("fp32",), (4,)),
        ((STATIC,), (4, 8)),
        (TWELVE, (8, 16, 32, 64, 128, 256)),
        (LADDERS, (4096, 8192, 16384, 32768, 65536, 131072)),
    ],
    ids=["1x1", "long name", "12x6", "large batches"],
)
def test_the_chart_is_tidy_and_has_a_bar_per_cell(configs: tuple[str, ...], batch_sizes: tuple[int, ...]) -> None:
    figure = throughput_chart(run(configs, batch_sizes), title="The ladder", subtitle="on a GPU")
    assert_tidy(figure)
    assert len(bars(figure)) == len(configs) * len(batch_sizes)
    assert {"Better ⟶\nimages/s", "batch size", *map(str, batch_sizes)} <= set(words(figure))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_any_mixture_of_ends_is_tidy(data: st.DataObject) -> None:
    configs = data.draw(st.lists(st.sampled_from(TWELVE), min_size=1, max_size=12, unique=True))
    sizes = data.draw(st.lists(st.sampled_from([1, 4, 8, 32, 256, 1024]), min_size=1, max_size=6, unique=True))
    cells = [(config, size) for config in configs for size in sizes]
    missing = {cell: status for cell in cells if (status := data.draw(st.sampled_from(STATUSES))) != "ok"}
    scale = data.draw(st.sampled_from([1e-6, 1e-3, 1.0, 37.0, 1e6]))
    noise = data.draw(st.sampled_from([0.0, 0.01, 0.5, 2.0]))
    summaries = run(configs, sizes, missing=missing, scale=scale, noise=noise)
    figure = throughput_chart(summaries, title="T", subtitle="s")
    assert_tidy(figure)
    assert len(bars(figure)) == len(cells) - len(missing)


def test_a_long_reason_is_shortened_to_what_the_panel_takes() -> None:
    record = make_record("fp32", status="failed", reason="RuntimeError: " + "very " * 60 + "sad")
    figure = throughput_chart(summarise([record]), title="T")
    [reason] = [text for text in words(figure) if text.startswith("failed")]
    assert reason.endswith("…")
    assert_tidy(figure)


def test_a_whisker_without_an_end_is_cut_and_marked() -> None:
    one_step = make_record("fp32", measurement=make_measurement((0.1, 0.1)))
    figure = throughput_chart(summarise([one_step, make_record("fp16")]), title="T")
    assert [line.get_marker() for line in figure.axes[0].lines].count("^") == 1
    assert_tidy(figure)


def test_a_number_stands_above_its_whisker_and_hides_nothing_of_it() -> None:
    steady = make_record("fp32", 4, images_per_s=40.0, noise=0.001)
    wild = make_record("fp16", 4, images_per_s=20.0, noise=0.8)
    figure = throughput_chart(summarise([steady, wild]), title="T")
    figure.canvas.draw()
    [axes] = figure.axes
    values = {text.get_text(): text for text in axes.texts}
    for summary in summarise([steady, wild]):
        assert summary.images_per_s is not None
        words = values[number(summary.images_per_s.value)]
        end = min(summary.images_per_s.high, 1.5 * 40.0)  # a very long one is cut
        above = (words.get_window_extent().y0 - axes.transData.transform((0, end))[1]) * 72 / figure.dpi
        assert 0 <= above <= 20
