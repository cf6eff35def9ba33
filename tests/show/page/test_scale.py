from __future__ import annotations

import math

import pytest

from tcbench.analysis.stats import Interval
from tcbench.show.page.scale import Scale


def test_places_are_per_cent_and_stay_within_the_plot():
    scale = Scale(0.0, 50.0)
    assert [scale.place(value) for value in (-1, 0, 12.5, 50, 99, math.inf)] == [0, 0, 25, 100, 100, 100]


def test_an_interval_out_of_all_proportion_is_cut_off_and_says_so():
    scale = Scale.over([Interval(10.0, 9.0, 11.0), Interval(8.0, 1.0, math.inf)])
    assert scale.high == 15.0
    wide = scale.whisker(Interval(8.0, 1.0, math.inf))
    assert wide.open_end and wide.x + wide.width == pytest.approx(100)
    assert not scale.whisker(Interval(10.0, 9.0, 11.0)).open_end


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 48, ["0", "10", "20", "30", "40"]),
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (0, 12_000_000, ["0", "2.5M", "5M", "7.5M", "10M"]),
        (0.85, 1.07, ["0.85", "0.9", "0.95", "1", "1.05"]),
        (0, 0.003, ["0", "1m", "2m", "3m"]),
    ],
)
def test_ticks_are_few_and_round(low, high, expected):
    assert [tick.text for tick in Scale(low, high).ticks()] == expected


def test_a_bar_lies_between_two_values_whichever_comes_first_and_can_always_be_seen():
    scale = Scale(0.0, 100.0)
    assert scale.bar(30, 20, "loss") == scale.bar(20, 30, "loss")
    assert scale.bar(5, 5, "gain").width > 0


def test_without_a_value_there_is_a_scale_all_the_same():
    assert Scale.over([]).high == 1.0
