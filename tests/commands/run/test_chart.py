"""A slide compares what the talk compared, and says what was not run; machines stand beside each other in one chart,
each in its own colour."""

import pytest
from factories import make_environment
from matplotlib.colors import to_hex
from show.charts.charts import STATIC, V100, assert_tidy, bars, legend, run, words

from tcbench.analysis.summary import CellSummary
from tcbench.commands.run.chart import SLIDES, machines_chart, slide_chart
from tcbench.core.record import Status
from tcbench.show.charts.palette import SERIES

NAMES = ("Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200", "X")
MACHINES = [V100, *(make_environment(name.lower().replace(" ", "-"), name) for name in NAMES)]


def several(n: int, batch_sizes: tuple[int, ...] = (32, 64)) -> list[CellSummary]:
    """Each machine half as fast again as the one before it."""
    return [
        summary
        for place, machine in enumerate(MACHINES[:n])
        for summary in run(batch_sizes=batch_sizes, environment=machine, scale=1 + place / 2)
    ]


@pytest.mark.long
@pytest.mark.parametrize(("n", "batch_sizes"), [(1, (4,)), (2, (1, 2, 4, 8, 16, 32)), (8, (32, 64, 128, 256))])
def test_the_chart_is_tidy_and_has_a_bar_per_machine(n: int, batch_sizes: tuple[int, ...]) -> None:
    figure = machines_chart(several(n, batch_sizes))
    assert_tidy(figure)
    assert [len(axes.patches) for axes in figure.axes] == [n * len(batch_sizes)] * 2
    assert legend(figure) == [machine.device_name for machine in MACHINES[:n]]
    colours = [to_hex(patch.get_facecolor()) for patch in bars(figure)]
    assert colours == [each.colour for each in SERIES[:n]] * 2 * len(batch_sizes)


def test_configs_are_chosen_and_have_panels() -> None:
    figure = machines_chart(several(2), ["fp16", "fp16+dali"])
    assert_tidy(figure)
    assert {"fp16", "fp16 + dali"} <= set(words(figure)) and len(figure.axes) == 2


@pytest.mark.parametrize("slide", SLIDES)
def test_each_slide_is_tidy(slide: int) -> None:
    static_graph: dict[tuple[str, int], Status] = {(STATIC, 128): "oom", (STATIC, 256): "oom", ("fp32", 256): "oom"}
    figure = slide_chart(run(missing=static_graph), slide)
    assert_tidy(figure)
    assert words(figure)[0].startswith(f"Slide {slide}: ")


def test_a_slide_knows_a_config_by_its_rungs_in_any_order() -> None:
    figure = slide_chart(run(("fp32", "fp16", "fp16+batched+nhwc+fused+dali"), (4,)), 27)
    assert len(bars(figure)) == 3
