import json

import factories
from consoles import printed

from tcbench.analysis.scale_out import RankStep
from tcbench.hardware import networks
from tcbench.run.scale_out import Basis, scale_out
from tcbench.views.scale_out import table as view
from tcbench.views.scale_out.chart import ScaleOutPoint, curves_of, scale_out_chart

STEP = RankStep(time_s=0.025, images=32, gradient_bytes=51_114_064, power_w=300.0)


def basis(source="forecast", batch_size=32, step=STEP):
    return Basis(factories.make_cell("fp16", batch_size), "Tesla V100-SXM2-16GB", step, source)


def shown(out, width=132):
    blocks = [block for one in out.bases for block in (view.heading(one), view.table(out, one))]
    return printed(*blocks, width=width)


def test_one_rank_has_one_row():
    assert shown(scale_out([basis()], [1], networks.load("abci"))).count(" 100.0% ") == 1


def test_energy_is_left_out_where_no_power_is_known():
    step = RankStep(time_s=0.1, images=4, gradient_bytes=1000)
    out = scale_out([basis("measured", step=step)], [8], networks.load("10,5"))
    assert "kWh" not in shown(out)
    assert "Energy: the power of the device is not known here." in view.assumptions(out)


def test_the_assumptions_name_the_network_s_sources():
    lines = view.assumptions(scale_out([basis()], [8], networks.load("p40-100gbe")))
    assert sum(line.startswith("Source: ") for line in lines) == 4
    assert any("(assumed)" in line for line in lines)


def test_json_has_every_way_of_every_size():
    value = json.loads(view.to_json(scale_out([basis(), basis("measured", 64)], [8, 64], networks.load("abci"))))
    assert [cell["bound"] for cell in value["cells"]] == [True, False]
    ways = [(size["ranks"], size["algorithm"], size["overlap"] > 0) for size in value["cells"][0]["sizes"]]
    assert len(set(ways)) == 8
    assert value["network"]["between_bytes_s"] == 25e9


# -- the chart ------------------------------------------------------------------------------------------------------


def drawn(figure):
    figure.canvas.draw()
    return {text.get_text() for axes in figure.axes for text in axes.texts}


def test_a_line_per_cell_falls_with_the_ranks_and_points_are_labelled():
    out = scale_out([basis(), basis(batch_size=64)], [4096, 8, 64], networks.load("abci"))
    curves = curves_of(out)
    assert [curve.ranks for curve in curves] == [(8, 64, 4096)] * 2
    assert list(curves[0].efficiency) == sorted(curves[0].efficiency, reverse=True)
    points = [ScaleOutPoint("91.6%", 1088, 0.916, None, 0), ScaleOutPoint("Goyal 2017", 256, None, 3600.0)]
    figure = scale_out_chart(curves, "about", points)
    assert drawn(figure) == {"91.6%", "Goyal 2017"}
    efficiency, times = figure.axes
    assert len(efficiency.lines) == len(times.lines) == 2
    assert [tick.get_text() for tick in times.get_yticklabels()] == ["1 min", "10 min", "1 h"]


def test_one_number_of_ranks_is_a_chart_too():
    scale_out_chart(curves_of(scale_out([basis()], [1], networks.load("10,5"))), "about").canvas.draw()
