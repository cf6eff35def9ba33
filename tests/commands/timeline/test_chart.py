"""The pictures of timelines: what stands in them, and that no word covers another or leaves its block."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text
from show.charts.charts import assert_tidy, extent, legend, words
from timelines import FEW, HOST, api, busy_timeline, kernel, make_timeline, phase, step, talk, training, work

from tcbench.commands.timeline.chart import Caption, close_up, timeline_chart
from tcbench.core.timeline import Span


def blocks(figure: Figure) -> list[Text]:
    return [text for axes in figure.axes for text in axes.texts if text.get_gid() == "block"]


def assert_in_blocks(figure: Figure) -> None:
    """Every label lies within one block, and no step's line goes through it."""
    for axes in figure.axes:
        to_pixels = axes.transData.transform
        boxes = []
        for collection in axes.collections:
            for path in collection.get_paths():
                (x0, y0), (x1, y1) = (to_pixels(path.vertices.min(axis=0)), to_pixels(path.vertices.max(axis=0)))
                boxes.append((min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)))
        lines = [to_pixels((line.get_xdata()[0], 0))[0] for line in axes.lines if len(set(line.get_xdata())) == 1]
        for text in axes.texts:
            if text.get_gid() != "block":
                continue
            box = extent(text)
            assert any(b[0] <= box.x0 and box.x1 <= b[2] and b[1] <= box.y0 and box.y1 <= b[3] for b in boxes), text
            assert not any(box.x0 < x < box.x1 for x in lines), f"a step begins within {text.get_text()!r}"


TALK = talk()


@pytest.mark.long
def test_cells_stand_under_each_other_on_one_time_scale() -> None:
    figure = timeline_chart(list(TALK.values()))
    assert_tidy(figure)
    assert_in_blocks(figure)
    assert len(figure.axes) == 5
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert len({(axes.get_position().x0, axes.get_position().x1) for axes in figure.axes}) == 1
    assert {"FWD", "BWD", "CPU", "GPU", "ms", *(timeline.label for timeline in TALK.values())} <= set(words(figure))


def test_zoomed_in_kernels_stand_alone_and_bear_their_names() -> None:
    slow = training("fp16, batch size 64", HOST, {"forward": 24, "backward": 34, "update": 6}, kernels=FEW, layers=36)
    figure = timeline_chart([slow], zoom=(23.0, 26.0))
    assert_tidy(figure)
    assert_in_blocks(figure)
    assert figure.axes[0].get_xlim() == (23.0, 26.0)
    shown = {text.get_text() for text in blocks(figure)}
    assert "block1.a" in shown
    assert any(name.startswith("bn_fw_tr") for name in shown)
    assert "layers" in words(figure)


def test_the_close_up_is_of_the_layers_or_kernels_in_a_row_that_take_longest_and_names_them() -> None:
    layers = [(0.5 + i * 0.001, 0.501 + i * 0.001, f"block{i}") for i in range(400)]
    layers[200:212] = [(0.7 + i * 0.02, 0.719 + i * 0.02, f"slow{i}") for i in range(12)]
    spans = [Span(begin, end, "host", "layer", name, 1, "forward") for begin, end, name in layers[:212]]
    steps = [step(i * 0.5, i * 0.5 + 0.5, i) for i in range(5)]
    timeline = make_timeline(*steps, phase("forward", 0.5, 0.94, 1), *spans)
    assert close_up(timeline) == (200, 439)
    shown = {text.get_text() for text in blocks(timeline_chart([timeline], zoom=close_up(timeline)))}
    assert {f"slow{i}" for i in range(12)} <= shown
    kernels = [kernel(0.6 + i * 0.01, 0.605 + i * 0.01) for i in range(3)]
    assert close_up(replace(timeline, spans=(*timeline.spans, *(replace(k, step=1) for k in kernels)))) == (100, 125)
    assert close_up(make_timeline(*steps, phase("forward", 0, 1))) is None


def test_without_a_gpu_there_is_no_row_for_one() -> None:
    shown = words(
        timeline_chart([make_timeline(step(0, 1), phase("io", 0, 0.2), phase("forward", 0.2, 1), work(0.3, 0.6))])
    )
    assert {"IO", "CPU", "64.0 images/s"} <= set(shown)
    assert "GPU" not in shown


def test_the_legend_names_what_is_there_and_nothing_else() -> None:
    assert legend(timeline_chart([busy_timeline()])) == ["IO: input", "FWD: forward", "BWD: backward"]
    waiting = make_timeline(
        step(0, 1), phase("update", 0, 1), api("cudaStreamSynchronize", 0.5, 1), kernel(0, 0.9, "update")
    )
    assert legend(timeline_chart([waiting])) == ["UPD: update", "waiting for the GPU"]


# Drawn as what they are made of: a failing example is then short enough to read.
host_ms = st.fixed_dictionaries({name: st.floats(0.01, 40) for name in ("io", "forward", "backward", "update")})
gpu_ms = st.fixed_dictionaries({name: st.floats(0.01, 60) for name in ("forward", "backward", "update")})
labels = st.sampled_from(["fp32, batch size 4", "fp16+" * 30 + "x, batch size 64"])
cells = st.tuples(labels, host_ms, gpu_ms, st.sampled_from([0.0, 3.0, 50.0]), st.integers(1, 5))
parts = st.none() | st.tuples(st.floats(0, 5), st.floats(0.5, 20))


@pytest.mark.slow
@given(st.lists(cells, min_size=1, max_size=3), parts)
@settings(max_examples=15, deadline=None)
def test_any_timelines_are_tidy(drawn: list, part: tuple[float, float] | None) -> None:
    timelines = [
        training(label, host, gpu, kernels=FEW, input_ms=input_ms, steps=steps)
        for label, host, gpu, input_ms, steps in drawn
    ]
    spans = min(max(s.end_s for s in timeline.spans) - timeline.begin_s for timeline in timelines) * 1e3
    zoom = None if part is None or part[0] >= spans / 2 else (part[0], part[0] + part[1])
    figure = timeline_chart(timelines, zoom)
    assert_tidy(figure)
    assert_in_blocks(figure)


def test_a_trace_of_another_profiler_is_drawn_to_the_end_of_its_work_and_names_no_rate() -> None:
    spans = (step(0.0, 0.01), phase("forward", 0.0, 0.009), kernel(0.015, 0.04))
    timeline = replace(make_timeline(*spans), batch_size=0, source="pytorch")
    figure = timeline_chart([timeline], captions=[Caption("40 ms per step", "gpu-bound: the GPU works")])
    assert_tidy(figure)
    assert figure.axes[0].get_xlim() == (0, pytest.approx(40))
    assert {"40 ms per step", "gpu-bound: the GPU works"} <= set(words(figure))
    assert not any("/s" in text for text in words(figure))
