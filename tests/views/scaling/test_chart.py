"""The chart of scaling over ranks: lines, the ideal ones, efficiencies, and what it says of cells without a number."""

import pytest
from factories import make_cell, make_environment, make_record
from matplotlib.figure import Figure
from present.charts.charts import V100, assert_tidy, legend, words

from tcbench.analysis.scaling import Curve, curves
from tcbench.core.errors import SelectionError
from tcbench.core.record import Environment, Record, Status
from tcbench.views.scaling.chart import scaling_chart

CONFIGS = ("fp32", "fp16+dali", "fp16+dali+batched")


def on(
    ranks: int,
    config: str = "fp32",
    batch_size: int = 32,
    efficiency: float = 0.9,
    status: Status = "ok",
    environment: Environment = V100,
) -> Record:
    rate = 100.0 * (1 + CONFIGS.index(config)) * ranks * (efficiency if ranks > 1 else 1)
    cell = make_cell(config, batch_size, ranks=ranks, device="cuda:0")
    return make_record(
        cell=cell, images_per_s=rate, status=status, environment=environment, run_id=environment.machine, noise=0.0
    )


def lines(figure: Figure, axes: int) -> list[list[tuple[float, float]]]:
    """The points of each config's line in a panel, in order; the ideal ones are dashed and have no marks."""
    return [
        [(float(x), float(y)) for x, y in line.get_xydata()]
        for line in figure.axes[axes].lines
        if line.get_marker() != "None"
    ]


def ideal(figure: Figure, axes: int) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in line.get_xydata()]
        for line in figure.axes[axes].lines
        if line.get_marker() == "None"
    ]


def test_throughput_and_efficiency_stand_against_ranks_beside_the_ideal() -> None:
    figure = scaling_chart(curves([on(1), on(2, efficiency=0.8), on(4, efficiency=0.5)]))
    assert_tidy(figure)
    [rates], [shares] = lines(figure, 0), lines(figure, 1)
    assert [x for x, _ in rates] == [x for x, _ in shares] == [1, 2, 4]
    assert [y for _, y in rates] == pytest.approx([100, 160, 200])
    assert [y for _, y in shares] == pytest.approx([1, 0.8, 0.5])
    assert ideal(figure, 0) == [[(1, pytest.approx(100)), (4, pytest.approx(400))]]
    assert ideal(figure, 1) == [[(1, 1.0), (4, 1.0)]]
    assert {"80%", "50%", "batch size 32 per rank", "ranks", "efficiency"} <= set(words(figure))
    assert any("dashed: the ideal, the throughput of one rank times the ranks" in text for text in words(figure))


def test_each_config_has_a_line_of_its_own_and_each_batch_size_a_row() -> None:
    records = [on(n, config, size) for size in (32, 64) for config in CONFIGS for n in (1, 2, 4, 8)]
    figure = scaling_chart([curve for curve in curves(records) if curve.kind == "weak"])
    assert_tidy(figure)
    assert legend(figure) == ["fp32", "fp16 + dali", "+ batched"]
    assert [len(lines(figure, place)) for place in range(len(figure.axes))] == [3, 3, 3, 3]
    assert {"batch size 32 per rank", "batch size 64 per rank"} <= set(words(figure))
    markers = [line.get_marker() for line in figure.axes[0].lines if line.get_marker() != "None"]
    assert len(set(markers)) == 3


def test_strong_scaling_has_rows_of_its_own_the_longest_of_them() -> None:
    records = [on(n, "fp32", size) for size in (8, 16, 32, 64) for n in (1, 2, 4, 8)]
    figure = scaling_chart(curves(records))
    assert_tidy(figure)
    heads = [text for text in words(figure) if text.startswith("global batch ")]
    assert heads == ["global batch 64", "global batch 32"]
    assert any(" more are not drawn (choose with " in text for text in words(figure))
    assert any("Strong scaling" in text for text in words(figure))


def test_without_one_rank_the_ideal_is_over_the_fewest() -> None:
    figure = scaling_chart(curves([on(2, efficiency=1.0), on(8, efficiency=0.75)]))
    assert ideal(figure, 0) == [[(2, pytest.approx(200)), (8, pytest.approx(800))]]
    assert any("as on the fewest of the line" in text for text in words(figure))


def test_a_cell_without_a_number_is_named_with_its_reason() -> None:
    figure = scaling_chart(curves([on(1), on(2), on(4, status="oom")]))
    assert_tidy(figure)
    assert len(lines(figure, 0)[0]) == 2
    assert any(text.startswith("no number: fp32, batch size 32, 4 ranks: out of memory") for text in words(figure))


def test_machines_have_rows_that_are_named_by_them() -> None:
    other = make_environment("h200", "NVIDIA H200")
    figure = scaling_chart(curves([on(n, environment=e) for e in (V100, other) for n in (1, 2)]))
    assert_tidy(figure)
    heads = [text for text in words(figure) if text.startswith("batch size")]
    assert heads == [f"batch size 32 per rank · {name}" for name in ("Tesla V100-DGXS-16GB", "NVIDIA H200")]


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        ((), "no cell of several ranks in these results"),
        (curves([on(1, status="oom"), on(2, status="oom")]), "batch size 32, 2 ranks: out of memory"),
    ],
)
def test_nothing_to_draw_is_one_clear_line(drawn: tuple[Curve, ...], expected: str) -> None:
    with pytest.raises(SelectionError, match=expected):
        scaling_chart(drawn)


def test_configs_that_other_charts_tell_apart_by_hatches_have_lines_of_their_own_colours() -> None:
    configs = ["bf16", "bf16+batched", "bf16+batched+flat_allreduce", "bf16+batched+flat_allreduce+overlap"]
    records = [
        make_record(cell=make_cell(config, ranks=n), images_per_s=10.0 * n) for config in configs for n in (1, 2)
    ]
    drawn = [line for line in scaling_chart(curves(records)).axes[0].lines if line.get_marker() != "None"]
    assert len({line.get_color() for line in drawn}) == len({line.get_marker() for line in drawn}) == 4
