"""Machines stand beside each other in one chart, each in its own colour."""

import pytest
from factories import LADDERS, make_cell, make_environment, make_record
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from present.charts.charts import V100, assert_tidy, bars, legend, run, words

from tcbench.analysis.summary import CellSummary, summarise
from tcbench.core.errors import SelectionError
from tcbench.core.record import Status
from tcbench.present.charts.palette import SERIES
from tcbench.views.machines import machines_chart

NAMES = ("Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200", "X")
MACHINES = [V100, *(make_environment(name.lower().replace(" ", "-"), name) for name in NAMES)]


def several(
    n: int, batch_sizes: tuple[int, ...] = (32, 64), missing: dict[tuple[str, int], Status] | None = None
) -> list[CellSummary]:
    """Each machine half as fast again as the one before it; the last lacks `missing`."""
    return [
        summary
        for place, machine in enumerate(MACHINES[:n])
        for summary in run(
            batch_sizes=batch_sizes,
            environment=machine,
            scale=1 + place / 2,
            missing=missing if place == n - 1 else None,
        )
    ]


def colours(figure: Figure) -> list[str]:
    return [to_hex(patch.get_facecolor()) for patch in bars(figure)]


@pytest.mark.parametrize(("n", "batch_sizes"), [(1, (4,)), (2, (1, 2, 4, 8, 16, 32)), (8, (32, 64, 128, 256))])
def test_the_chart_is_tidy_and_has_a_bar_per_machine(n: int, batch_sizes: tuple[int, ...]) -> None:
    figure = machines_chart(several(n, batch_sizes))
    assert_tidy(figure)
    assert [len(axes.patches) for axes in figure.axes] == [n * len(batch_sizes)] * 2
    assert legend(figure) == [machine.device_name for machine in MACHINES[:n]]
    assert colours(figure) == [each.colour for each in SERIES[:n]] * 2 * len(batch_sizes)


def test_bars_of_one_batch_size_stand_together() -> None:
    figure = machines_chart(several(2), ["fp32"])
    [axes] = figure.axes
    heights = [round(patch.get_height(), -1) for patch in bars(figure)]
    assert heights == [100, 150, 100, 150]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "64"]


def test_the_best_of_each_machine_and_batch_size_is_named() -> None:
    summaries = several(2, missing={(LADDERS[9], 64): "oom"})
    figure = machines_chart(summaries)
    assert {"fp32", "the best config of each"} <= set(words(figure))
    said = words(figure)
    assert f"best of Tesla V100-DGXS-16GB: {LADDERS[9]} at 32, 64" in said
    assert f"best of Tesla T4: {LADDERS[9]} at 32; {LADDERS[8]} at 64" in said


def test_configs_are_chosen_and_have_panels() -> None:
    figure = machines_chart(several(2), ["fp16", "fp16+dali"])
    assert_tidy(figure)
    assert {"fp16", "fp16 + dali"} <= set(words(figure)) and len(figure.axes) == 2


def test_what_a_machine_lacks_is_said_in_its_place() -> None:
    records = [
        make_record("fp32", 4, environment=V100, run_id="a"),
        make_record("fp32", 8, environment=V100, run_id="a"),
        make_record("fp32", 4, environment=MACHINES[1], run_id="b", status="oom"),
    ]
    figure = machines_chart(summarise(records))
    assert_tidy(figure)
    assert words(figure).count("out of memory") == 2  # fp32 and the best
    assert words(figure).count("not run") == 2


def test_settings_of_one_machine_stand_beside_each_other_too() -> None:
    records = [make_record("fp32"), make_record(cell=make_cell(image_size=96))]
    figure = machines_chart(summarise(records))
    assert legend(figure) == ["64 × 64 images", "96 × 96 images"]
    assert "Throughput by setting" in words(figure)


def test_nothing_to_plot_and_too_much_are_one_clear_line() -> None:
    with pytest.raises(SelectionError, match="no results to plot"):
        machines_chart([])
    with pytest.raises(SelectionError, match="no results of bf16 to plot"):
        machines_chart(several(2), ["bf16"])
    records = [make_record(cell=make_cell(seed=seed)) for seed in range(9)]
    with pytest.raises(SelectionError, match="9 different settings"):
        machines_chart(summarise(records))
