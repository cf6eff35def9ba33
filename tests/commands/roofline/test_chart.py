"""The roofline's picture: ceilings, marks and arrows, and labels that cover neither each other nor a mark."""

import itertools
from dataclasses import replace

import msgspec
import pytest
from factories import LADDERS, make_cell, make_environment, make_measurement, make_phases, make_record
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from show.charts.charts import assert_tidy, extent, legend

from tcbench.analysis.summary import summarise
from tcbench.commands.roofline.chart import roofline_chart
from tcbench.commands.roofline.roofline import CellRoofline, WorkPart, cell_roofline, layer_parts
from tcbench.engine.accelerators.ceilings import Ceilings

CEILINGS = Ceilings("AMD EPYC", {"fp32": 9e10, "fp16": 4e11}, 2e10, "a product and a copy, measured")


def make_roofline(config: str, batch_size: int, step_s: float = 0.2, device: str = "cpu") -> CellRoofline:
    cell = make_cell(config, batch_size, device=device)
    record = make_record(cell=cell, measurement=make_measurement([step_s] * 12))
    [summary] = summarise([record])
    return cell_roofline(summary, [record], CEILINGS)


def offsets(axes: Axes) -> list[tuple[float, float]]:
    """Intensity and rate of phases and layers; marks on the ceiling lie below them."""
    marks = [c for c in axes.collections if isinstance(c, PathCollection) and c.get_zorder() >= 3]
    return [tuple(offset) for c in marks for offset in c.get_offsets()]


def assert_clear(figure: Figure) -> None:
    """No label lies on a mark, and no text on another."""
    assert_tidy(figure)
    for axes in figure.axes:
        boxes = [extent(text) for text in axes.texts]
        for box, (x, y) in itertools.product(boxes, axes.transData.transform(offsets(axes) or [(1, 1)])):
            assert not (box.x0 < x < box.x1 and box.y0 < y < box.y1)


def ladders() -> list[CellRoofline]:
    """Two precisions at two batch sizes; of each ladder the last config is the fastest."""
    steps_s = {config: {4: 0.08, 9: 0.05}.get(i, 0.2 + 0.01 * i) for i, config in enumerate(LADDERS)}
    return [make_roofline(config, size, steps_s[config]) for config in LADDERS for size in (4, 8)]


def test_a_panel_per_precision_leads_from_the_base_to_the_fastest_of_each_batch_size() -> None:
    cells = ladders()
    figure = roofline_chart(cells)
    assert_clear(figure)
    assert legend(figure) == ["forward", "backward", "update", "fp32", "the fastest, with its batch size"]
    handles = figure.legends[0].legend_handles[:3]
    assert len({handle.get_marker() for handle in handles}) == len({handle.get_color() for handle in handles}) == 3
    by_cell = {(cell.summary.cell.config, cell.summary.cell.batch_size): cell for cell in cells}
    for axes, top in zip(figure.axes, (LADDERS[4], LADDERS[9]), strict=True):
        ways = [
            ((a.intensity, a.flops_s), (b.intensity, b.flops_s))
            for size in (4, 8)
            for a, b in zip(by_cell["fp32", size].phases, by_cell[top, size].phases, strict=True)
        ]
        arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
        assert sorted(tuple(arrow._posA_posB) for arrow in arrows) == sorted(ways)  # type: ignore[attr-defined]
        assert sorted(offsets(axes)) == sorted(place for way in ways for place in way)


@pytest.mark.long
def test_every_cell_is_numbered_in_the_legend() -> None:
    figure = roofline_chart(ladders(), all_cells=True)
    assert_clear(figure)
    assert legend(figure)[:6] == ["forward", "backward", "update", "fp32", "the fastest", "1 fp32, batch size 4"]
    assert len(legend(figure)) == 25
    assert [len(offsets(axes)) for axes in figure.axes] == [30, 36]


@pytest.mark.parametrize("fp16", [9e10, 9.2e10, 4e11])
def test_the_words_of_two_ceilings_stand_apart(fp16: float) -> None:
    ceilings = msgspec.structs.replace(CEILINGS, flops_s={"fp32": 9e10, "fp16": fp16})
    cells = [replace(make_roofline(config, 64, device="cuda:0"), ceilings=ceilings) for config in ("fp32", "fp16")]
    figure = roofline_chart(cells)
    assert_clear(figure)
    shown = [text.get_text() for text in figure.axes[1].texts]
    assert [words.split(":")[0] for words in shown if "GFLOP/s" in words] == ["fp16", "fp32"]


def test_a_graphs_replay_stands_beside_the_bases_whole_step() -> None:
    cells = []
    for config, phases in (("fp32", ("forward", "backward", "update")), ("fp32+cuda_graph", ("replay",))):
        measurement = make_measurement([0.1] * 12, phases=make_phases(dict.fromkeys(phases, 0.03)))
        record = make_record(cell=make_cell(config, 8), measurement=measurement)
        cells.append(cell_roofline(summarise([record])[0], [record], CEILINGS))
    cells[1] = replace(cells[1], summary=replace(cells[1].summary, images_per_s=cells[1].summary.images_per_s / 0.5))
    [axes] = roofline_chart(cells).axes
    [arrow] = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    [replay] = cells[1].phases
    assert arrow._posA_posB == [  # type: ignore[attr-defined]
        (replay.intensity, pytest.approx(replay.flops / 0.09)),
        (replay.intensity, replay.flops_s),
    ]


def test_devices_have_panels_and_ceilings_of_their_own() -> None:
    record = make_record(cell=make_cell("fp32", 4), environment=make_environment("toaster", "a toaster"))
    other = msgspec.structs.replace(CEILINGS, device_name="a toaster", flops_s={"fp32": 3e10})
    figure = roofline_chart([make_roofline("fp32", 4), cell_roofline(summarise([record])[0], [record], other)])
    assert_clear(figure)
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["fp32: 90.0 GFLOP/s", "fp32: 30.0 GFLOP/s"]
    assert [axes.get_title().split()[0] for axes in figure.axes] == ["AMD", "a"]


@pytest.mark.slow
@given(st.lists(st.floats(1e-5, 10), min_size=1, max_size=120), st.sampled_from(["fp32", "fp16+fused"]))
@settings(max_examples=12, deadline=None)
def test_any_times_of_layers_give_a_clear_picture(times_s: list[float], config: str) -> None:
    cell = make_roofline(config, 4)
    parts = itertools.zip_longest(layer_parts(cell.summary.cell), times_s[: len(cell.layers)])
    layers = tuple(WorkPart(p.name, p.phase, p.flops, p.bytes, time_s) for p, time_s in parts)
    figure = roofline_chart([replace(cell, layers=layers)])
    assert_clear(figure)
