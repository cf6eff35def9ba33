"""A chart that cannot be drawn is one clear line."""

import pytest
from comparisons import reported
from factories import make_cell, make_record
from histories import over_commits
from show.charts.charts import run
from timelines import busy_timeline, kernel, make_timeline

from tcbench.analysis.summary import summarise
from tcbench.commands.compare.chart import comparison_chart
from tcbench.commands.history.chart import history_chart
from tcbench.commands.history.history import build_history
from tcbench.commands.plot.ladder_chart import ladder_chart
from tcbench.commands.roofline.chart import roofline_chart
from tcbench.commands.run.chart import machines_chart, slide_chart, throughput_chart
from tcbench.commands.run.networks_chart import networks_chart
from tcbench.commands.run.scaling import curves
from tcbench.commands.run.scaling_chart import scaling_chart
from tcbench.commands.timeline.chart import timeline_chart
from tcbench.core.errors import SelectionError

UNDRAWN = [
    (lambda: throughput_chart([]), "no results to plot; measure some with `tcbench run`"),
    (lambda: ladder_chart([]), "no results to plot"),
    (lambda: ladder_chart(run(("fp32", "fp16"))), "no ladder in these results"),
    (lambda: machines_chart([]), "no results to plot"),
    (lambda: machines_chart(run(), ["bf16"]), "no results of bf16 to plot"),
    (lambda: machines_chart(summarise(make_record(cell=make_cell(seed=n)) for n in range(9))), "9 different settings"),
    (lambda: networks_chart(run()), "results of one network: expected several"),
    (lambda: slide_chart(run(("fp32+dali",)), 12), "--slide 12: no results of fp32, fp16"),
    (lambda: slide_chart(run(), 13), "--slide 13: expected one of 12, 21, 27, 31, 33"),
    (lambda: history_chart(build_history([])), "no results to plot"),
    (lambda: history_chart(build_history(over_commits([40]))), "no cell was measured at two commits"),
    (lambda: comparison_chart(reported([], [])), "nothing to compare"),
    (
        lambda: comparison_chart(reported([make_record("fp32", n) for n in range(1, 602)], [])),
        "601 cells do not fit in",
    ),
    (lambda: roofline_chart([]), "no cell to draw a roofline of"),
    (lambda: scaling_chart([]), "no cell with several ranks in these results"),
    (
        lambda: scaling_chart(curves([make_record(cell=make_cell(ranks=n), status="oom") for n in (1, 2)])),
        "batch size 4, 2 ranks: out of memory",
    ),
    (lambda: timeline_chart([]), "no timeline to draw"),
    (lambda: timeline_chart([make_timeline(kernel(0, 1))]), "no steps in this timeline"),
    (lambda: timeline_chart([busy_timeline()], step=7), "--step 7: fp16, batch size 64 has 0 to 0"),
    (lambda: timeline_chart([busy_timeline()], zoom=(5, 5)), "zoom 5:5: expected begin and end in ms"),
    (lambda: timeline_chart([busy_timeline()], zoom=(float("nan"), 5)), "expected begin and end in ms"),
    (
        lambda: timeline_chart([busy_timeline()], zoom=(500, 600)),
        "zoom 500:600: nothing recorded there; expected a part of 0:100",
    ),
]


@pytest.mark.parametrize(("draw", "expected"), UNDRAWN, ids=[expected for _, expected in UNDRAWN])
def test_what_cannot_be_drawn_is_one_clear_line(draw, expected):
    with pytest.raises(SelectionError, match=expected):
        draw()
