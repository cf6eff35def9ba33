"""Records of many ranks become curves of scaling, with the exchange's time and bandwidth and the ranks' imbalance."""

from collections.abc import Sequence

import pytest
from factories import make_cell, make_measurement, make_measurement_of_ranks, make_rank_part, make_record

from tcbench.commands.run.scaling import IMAGES_TO_TRAIN, Curve, curves
from tcbench.core.record import RankPart, Record


def on(ranks: int, images_per_s: float, batch_size: int = 4, trials: int = 2, **changes: object) -> list[Record]:
    """Trials of fp32 on so many ranks, which differ by a hundredth."""
    cell = make_cell("fp32", batch_size, ranks=ranks)
    return [
        make_record(cell=cell, trial=trial, images_per_s=images_per_s * (1 + 0.01 * trial), noise=0.0, **changes)
        for trial in range(trials)
    ]


def part(rank: int, forward_s: Sequence[float], allreduce_s: Sequence[float]) -> RankPart:
    steps = {"forward": forward_s, "allreduce": allreduce_s, "update": (9.0,) * len(forward_s)}
    return make_rank_part(steps, rank)


def only(records: Sequence[Record], kind: str = "weak") -> Curve:
    [curve] = [curve for curve in curves(records) if curve.kind == kind]
    return curve


def test_strong_scaling_is_over_cells_of_one_global_batch() -> None:
    records = [*on(1, 100.0, 8), *on(2, 150.0, 4), *on(4, 200.0, 2), *on(2, 180.0, 8)]
    curve = only(records, "strong")
    assert (curve.images, [(p.ranks, p.summary.cell.batch_size) for p in curve.points]) == (8, [(1, 8), (2, 4), (4, 2)])
    assert [p.speedup.value for p in curve.points if p.speedup] == pytest.approx([1, 1.5, 2])
    assert [p.efficiency.value for p in curve.points if p.efficiency] == pytest.approx([1, 0.75, 0.5])


def test_the_time_to_train_is_the_images_of_the_training_over_the_measured_rate_of_all_ranks() -> None:
    first, two = only([*on(1, 100.0), *on(2, 160.0)]).points
    assert first.images_per_s is not None and two.time_to_train_s is not None
    assert first.time_to_train_s == IMAGES_TO_TRAIN / first.images_per_s
    assert two.time_to_train_s.value == pytest.approx(90 * 1_280_000 / 160.8, rel=1e-3)
    assert two.time_to_train_s.low < two.time_to_train_s.value < two.time_to_train_s.high
    of_text = only([make_record(cell=make_cell(ranks=ranks, unit="sequences")) for ranks in (1, 2)])
    assert [point.time_to_train_s for point in of_text.points] == [None, None]


def test_bandwidths_are_those_of_nccl_tests() -> None:
    measurement = make_measurement_of_ranks((0.1,) * 12, 4, allreduce=0.5, reduced_bytes=100_000_000)
    point = only([*on(1, 40.0), make_record(cell=make_cell(ranks=4), measurement=measurement)]).points[1]
    exchange = point.allreduce
    assert exchange.time_s.value == pytest.approx(0.05)
    assert exchange.algorithm_bytes_s.value == pytest.approx(2e9)
    assert exchange.bus_bytes_s.value == pytest.approx(2e9 * 2 * 3 / 4)


def test_imbalance_names_the_slowest_and_the_fastest_rank_of_each_step() -> None:
    parts = (
        part(0, (1.0, 1.0, 1.0), (1.0, 3.0, 1.0)),
        part(1, (2.0, 1.5, 0.5), (0.1, 2.5, 1.5)),
        part(2, (1.5, 3.5, 1.5), (0.5, 0.1, 0.1)),
    )
    measurement = make_measurement(ranks=parts)
    imbalance = only([make_record(cell=make_cell(ranks=3), measurement=measurement)]).points[0].imbalance
    extremes = [(s.index(max(s)), max(s), s.index(min(s))) for s in imbalance.steps]
    assert extremes == [(1, 2.0, 0), (2, 3.5, 0), (2, 1.5, 1)]
    assert (imbalance.slowest, imbalance.slowest_in, imbalance.fastest) == (2, 2, 0)
    assert imbalance.share == pytest.approx((2.0 + 3.5 + 1.5) / (1.5 + 2.0 + 1.0) - 1)
