"""The roofline's picture: ceilings, points, and labels that cover neither each other nor a point."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from factories import LADDERS, make_cell, make_measurement, make_record
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from present.charts.charts import assert_tidy, extent, legend, words

from tcbench.analysis.roofline import Ceilings, CellRoofline, WorkPart, layer_parts, roofline
from tcbench.analysis.summary import summarise
from tcbench.core.errors import SelectionError
from tcbench.views.roofline.chart import roofline_chart

CEILINGS = Ceilings("AMD EPYC", (("fp32", 9e10), ("fp16", 4e11)), 2e10, True, "a product and a copy, measured")


def cell_roofline(config: str, batch_size: int, step_s: float = 0.2, device: str = "cpu") -> CellRoofline:
    cell = make_cell(config, batch_size, device=device)
    record = make_record(cell=cell, measurement=make_measurement([step_s] * 12))
    [summary] = summarise([record])
    return roofline(summary, [record], CEILINGS)


def points(figure: Figure) -> list[tuple[float, float]]:
    """Of phases and layers, in pixels."""
    [axes] = figure.axes
    return [tuple(place) for place in axes.transData.transform(offsets(figure))]


def offsets(figure: Figure) -> list[tuple[float, float]]:
    """Intensity and rate of phases and layers; marks on the ceiling lie below them."""
    [axes] = figure.axes
    marks = [c for c in axes.collections if isinstance(c, PathCollection) and c.get_zorder() == 3]
    return [tuple(offset) for c in marks for offset in c.get_offsets()]


def assert_clear(figure: Figure) -> None:
    """No label lies on a point or on another."""
    boxes = [extent(text) for text in figure.axes[0].texts]
    for a, b in itertools.combinations(boxes, 2):
        assert not a.overlaps(b)
    for box, (x, y) in itertools.product(boxes, points(figure)):
        assert not (box.x0 < x < box.x1 and box.y0 < y < box.y1)


def test_one_cell_shows_its_phases_by_name_under_the_ceilings() -> None:
    figure = roofline_chart([cell_roofline("fp32", 8)])
    assert_tidy(figure)
    assert_clear(figure)
    assert {"forward", "backward", "update", "fp32: 90.0 GFLOP/s", "20.0 GB/s"} <= set(words(figure))
    assert len(points(figure)) == 3


def test_points_stand_where_their_intensity_and_rate_are() -> None:
    cell = cell_roofline("fp32", 8)
    expected = [(part.intensity, part.flops_s) for part in cell.phases]
    assert np.allclose(sorted(offsets(roofline_chart([cell]))), sorted(expected))


def test_many_cells_are_numbered_in_the_legend() -> None:
    cells = [cell_roofline(config, size, 0.1 + 0.02 * i) for i, config in enumerate(LADDERS) for size in (4, 8)]
    figure = roofline_chart(cells)
    assert_tidy(figure)
    assert_clear(figure)
    assert legend(figure)[:4] == ["forward", "backward", "update", "1 fp32, batch size 4"]
    assert len(points(figure)) == 60


def test_each_precision_has_its_own_ceiling() -> None:
    shown = words(roofline_chart([cell_roofline(c, 64, device="cuda:0") for c in ("fp32", "fp16")]))
    assert {"fp32: 90.0 GFLOP/s", "fp16: 400 GFLOP/s"} <= set(shown)


@pytest.mark.slow
@given(st.lists(st.floats(1e-5, 10), min_size=1, max_size=120), st.sampled_from(["fp32", "fp16+fused"]))
@settings(max_examples=12, deadline=None)
def test_any_times_of_layers_give_a_clear_picture(times_s: list[float], config: str) -> None:
    cell = cell_roofline(config, 4)
    parts = itertools.zip_longest(layer_parts(cell.summary.cell), times_s[: len(cell.layers)])
    layers = tuple(WorkPart(p.name, p.phase, p.flops, p.bytes, time_s) for p, time_s in parts)
    figure = roofline_chart([replace(cell, layers=layers)])
    assert_tidy(figure)
    assert_clear(figure)


def test_what_is_not_one_devices_is_one_clear_line() -> None:
    one = cell_roofline("fp32", 4)
    with pytest.raises(SelectionError, match="no cell to draw a roofline of"):
        roofline_chart([])
    with pytest.raises(SelectionError, match="these results are of AMD EPYC and a toaster; name fewer files"):
        roofline_chart([one, replace(one, ceilings=replace(CEILINGS, device_name="a toaster"))])
    with pytest.raises(SelectionError, match="41 cells do not fit"):
        roofline_chart([one] * 41)
