"""Numbers are short, carry their unit, and say so where they end."""

import math

import pytest

from tcbench.analysis.stats import Interval
from tcbench.show import format as numbers
from tcbench.show.tables import RATE

OPEN = Interval(10.0, 1.0, math.inf)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2e-6, "2.00µ"),
        (0.0123, "0.0123"),
        (4.561, "4.56"),
        (78.94, "78.9"),
        (1234.4, "1234"),
        (9.999, "10.0"),
        (9999.6, "10.0k"),
        (12345, "12.3k"),
        (4.56e6, "4.56M"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert numbers.number(value) == text


@pytest.mark.parametrize(
    ("images_per_s", "text"),
    [
        (Interval(12.345, 12.0, 12.7), "12.3 ± 2.8%"),
        (OPEN, "10.0 ± >100%"),
        (Interval(66_712.0, 66_000.0, 67_000.0), "66.7k ± 0.7%"),
        (Interval(math.inf, 1.0, math.inf), "any ± >100%"),
    ],
)
def test_a_rate_shows_its_interval(images_per_s: Interval, text: str) -> None:
    assert RATE.interval(images_per_s) == text


def test_sizes_and_times_are_read_at_a_glance() -> None:
    assert [numbers.size(n) for n in (512 * 2**20, 3 * 2**29)] == ["512 MiB", "1.50 GiB"]
    shown = map(numbers.milliseconds, (5e-8, 0.00123, 0.0456, 0.09996, 1.5))
    assert ", ".join(shown) == "0.00005 ms, 1.23 ms, 45.6 ms, 100 ms, 1500 ms"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (3900, "1 h 05 min")]
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text


def test_a_share_that_is_there_is_never_written_as_nothing() -> None:
    assert [numbers.percent(x) for x in (0, 0.0004, 0.001, 0.123, 1)] == ["0.0%", "<0.1%", "0.1%", "12.3%", "100.0%"]
    assert [numbers.percent(x, 0) for x in (0, 0.004, 0.12)] == ["0%", "<1%", "12%"]
    assert [numbers.threshold(x) for x in (0.03, 0.025)] == ["3%", "2.5%"]


def test_ratios_end_where_nothing_is_known() -> None:
    assert " ".join(map(numbers.factor, (2e-6, 0.0453, 1.234, 12.34, 1e3, 45_678))) == (
        "0.000002× 0.045× 1.23× 12.3× 1000× 45.7k×"
    )
    assert numbers.ratio(Interval(0.95, 0.938, math.inf)) == "0.950 (0.938 to >1000)"
    assert numbers.ratio(None) == ""
    assert numbers.changes(Interval(0.948, 0.939, 0.957)) == "-5.2% (-6.1% to -4.3%)"
    assert numbers.change(math.inf) == ">+1000%"
    assert numbers.limits(OPEN) == "1.00 to no limit"


def test_counts_agree_with_their_nouns() -> None:
    assert [numbers.counted(n, "trial") for n in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
    assert numbers.counted(2, "entry", "entries") == "2 entries"
    assert numbers.numbers([8, 4, 16, 4]) == "4, 8 and 16"
