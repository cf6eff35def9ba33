"""The fastest way is taken, and no time is spent on one that is hopeless."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tcbench import work as w
from tcbench.accelerators.cpu.onednn import tuning

WORK = w.Add(8, "float32")
OPERANDS = WORK.operands


class OnTwoThreads:
    n_threads = 2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    return tmp_path / "onednn-v1"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: made[0])
    return made


def fastest(ways: list[Way]) -> tuning.Choice:
    return tuning.fastest(OnTwoThreads(), WORK, ways)  # type: ignore[arg-type]


class Way:
    """Takes so many ticks of a clock of its own."""

    def __init__(self, name: str, clock: list[float], ticks: float) -> None:
        self.name, self.runs = name, 0
        self._clock, self._ticks = clock, ticks

    def bind(self, *arrays: np.ndarray) -> Callable[[], None]:
        assert [array.dtype for array in arrays] == [operand.dtype for operand in OPERANDS]
        return self._run

    def _run(self) -> None:
        self.runs += 1
        self._clock[0] += self._ticks


@pytest.mark.parametrize(
    ("ticks", "taken"), [((10, 9, 7), 2), ((10, 9.9, 9.8), 0), ((10, 50, 9), 2), ((10,), 0)], ids=str
)
def test_the_fastest_is_taken_if_it_is_faster_than_the_preferred_by_more_than_noise(
    ticks: tuple[float, ...], taken: int, clock: list[float]
) -> None:
    ways = [Way(f"way {i}", clock, each) for i, each in enumerate(ticks)]
    assert fastest(ways).name == f"way {taken}"


def test_what_is_far_behind_is_run_twice_and_no_more(clock: list[float]) -> None:
    slow, fast, near = (Way(name, clock, ticks) for name, ticks in (("slow", 30), ("fast", 10), ("near", 12)))
    assert fastest([slow, fast, near]).name == "fast"
    assert (slow.runs, fast.runs, near.runs) == (2, 1 + tuning.RUNS, 1 + tuning.RUNS)


def test_a_few_processes_add_their_least_times_and_those_after_them_measure_nothing(clock: list[float]) -> None:
    """The first process meets a busy moment, in which the better way looks worse."""
    taken = []
    for slow, fast in [(10, 12), (10, 6), (10, 6), (10, 50), (10, 50)]:
        ways = [Way("slow", clock, slow), Way("fast", clock, fast)]
        choice = fastest(ways)
        taken.append((choice.name, choice.from_cache, bool(ways[0].runs)))
    measured = [("slow", False, True), ("fast", False, True), ("fast", False, False)]
    assert taken == [*measured, ("fast", True, False), ("fast", True, False)]


def test_a_way_that_earlier_processes_knew_to_be_far_behind_is_not_run(clock: list[float]) -> None:
    fastest([Way("slow", clock, 30), Way("fast", clock, 10)])
    ways = [Way("slow", clock, 30), Way("fast", clock, 10)]
    fastest(ways)
    assert [way.runs for way in ways] == [0, 1 + tuning.RUNS]


@pytest.mark.parametrize("content", ["other ways", "damaged", "fresh"])
def test_what_was_kept_of_other_ways_or_is_not_wanted_counts_for_nothing(
    content: str, clock: list[float], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(tuning.PROCESSES):
        fastest([Way("a", clock, 5), Way("b", clock, 10)])
    if content == "damaged":
        for path in cache.iterdir():
            path.write_bytes(path.read_bytes().replace(b"seconds", b"minutes"))
    monkeypatch.setenv("TCBENCH_FRESH_AUTOTUNE", str(int(content == "fresh")))
    choice = fastest([Way("a", clock, 20), Way("c" if content == "other ways" else "b", clock, 10)])
    assert choice.name in "bc"
    assert not choice.from_cache
