"""The fastest way is taken, and no time is spent on one that is hopeless."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tcbench.core import messages
from tcbench.engine import work as w
from tcbench.engine import world
from tcbench.engine.accelerators.cpu.onednn import tuning
from tcbench.hardware import load
from tcbench.hardware.load import Counts

WORK = w.Add(8, "float32")
OPERANDS = WORK.operands


class OnTwoThreads:
    n_threads, began, team = 2, None, None


@pytest.fixture(autouse=True)
def beside_others(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether other work has the processors, of which the machine that tests run on says nothing; empty: no."""
    disturbed: list[bool] = []
    monkeypatch.setattr(tuning, "_is_disturbed", lambda engine: bool(disturbed))
    return disturbed


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    return tmp_path / messages.CPU_TIMES


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    return now_s


def fastest(ways: Sequence[Way | tuning.Choice]) -> tuning.Choice:
    choices = [tuning.Choice(way.bind, way.name) for way in ways]
    return tuning.fastest(OnTwoThreads(), WORK, choices)  # type: ignore[arg-type]


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
    ("ticks", "expected"), [((10, 9, 7), 2), ((10, 9.9, 9.8), 0), ((10, 50, 9), 2), ((10,), 0)], ids=str
)
def test_the_fastest_is_taken_if_it_is_faster_than_the_preferred_by_more_than_noise(
    ticks: tuple[float, ...], expected: int, clock: list[float]
) -> None:
    ways = [Way(f"way {i}", clock, each) for i, each in enumerate(ticks)]
    assert fastest(ways).name == f"way {expected}"


def test_what_is_far_behind_is_run_twice_and_no_more(clock: list[float]) -> None:
    slow, fast, near = (Way(name, clock, ticks) for name, ticks in (("slow", 30), ("fast", 10), ("near", 12)))
    assert fastest([slow, fast, near]).name == "fast"
    assert (slow.runs, fast.runs, near.runs) == (2, 1 + tuning.LEAST_ROUNDS, 1 + tuning.LEAST_ROUNDS)


def test_a_way_that_met_another_process_in_its_first_look_is_looked_at_again(clock: list[float]) -> None:
    class Disturbed(Way):
        def _run(self) -> None:
            super()._run()
            self._clock[0] += 0.9 * self._ticks * (self.runs == 2)

    assert fastest([Way("slow", clock, 10), Disturbed("fast", clock, 8)]).name == "fast"


def test_a_few_processes_add_their_times_and_those_after_them_measure_nothing(clock: list[float]) -> None:
    """The first process meets a busy moment, in which the better way looks worse."""
    choices = []
    for slow, fast in [(10, 12), (10, 6), (10, 6), (10, 50), (10, 50)]:
        ways = [Way("slow", clock, slow), Way("fast", clock, fast)]
        choice = fastest(ways)
        choices.append((choice.name, choice.from_cache, bool(ways[0].runs)))
    measured = [("slow", False, True), ("fast", False, True), ("fast", False, True)]
    assert choices == [*measured, ("fast", True, False), ("fast", True, False)]


def test_choices_made_beside_other_work_are_provisional_until_a_process_has_its_processors(
    clock: list[float], beside_others: list[bool]
) -> None:
    """The faster implementation seems slower under other load."""
    choices = []
    for is_disturbed in (True,) * 5 + (False,) * 4 + (True,):
        beside_others[:] = [True] * is_disturbed
        ways = [Way("slow", clock, 10), Way("fast", clock, 12 if is_disturbed else 6)]
        choice = fastest(ways)
        choices.append((choice.name, choice.provisional, choice.from_cache, bool(ways[1].runs)))
    provisional = [("slow", True, False, True)] * 3 + [("slow", True, True, False)] * 2
    assert choices == [*provisional, *[("fast", False, False, True)] * 3, *[("fast", False, True, False)] * 2]


def test_what_another_process_kept_meanwhile_stays(clock: list[float]) -> None:
    class Meanwhile(Way):
        def _run(self) -> None:
            if not self.runs:
                self.runs += 1
                for _ in range(tuning.PROCESSES - 1):
                    fastest([Way("slow", clock, 10), Way("fast", clock, 6)])
            super()._run()

    assert fastest([Meanwhile("slow", clock, 10), Way("fast", clock, 12)]).name == "fast"
    assert fastest([Way("slow", clock, 10), Way("fast", clock, 12)]).from_cache


def test_a_process_is_beside_others_by_its_lost_time_or_as_one_of_several_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    engine = OnTwoThreads()
    engine.began = Counts(at_s=0.0, processors=2, busy_s=0.0, stolen_s=0.0, own_s=0.0, waited_s=0.0)  # type: ignore
    for others_s, lost in ((0.0, False), (0.5, True)):
        now = Counts(at_s=1.0, processors=2, busy_s=1.0 + others_s, stolen_s=0.0, own_s=1.0, waited_s=0.5)
        monkeypatch.setattr(load, "own_counts", lambda now=now: now)
        assert tuning._is_disturbed(engine) == lost  # type: ignore[arg-type]
        with world.entered(world.World(size=2, local_size=2)):
            assert tuning._is_disturbed(engine)  # type: ignore[arg-type]


def test_of_ways_whose_times_are_kept_one_is_made(clock: list[float]) -> None:
    created: list[str] = []

    def unmade(name: str, ticks: float) -> tuning.Choice:
        return tuning.lazy(name, lambda: created.append(name) or Way(name, clock, ticks))  # type: ignore[func-returns-value, return-value, arg-type]

    for processes in range(tuning.PROCESSES + 1):
        created.clear()
        choice = fastest([unmade("slow", 30), unmade("fast", 10)])
        assert choice.name == "fast"
        choice.bind(*(np.zeros(operand.shape, operand.dtype) for operand in OPERANDS))
        assert created == [["slow", "fast"], ["fast"]][processes == tuning.PROCESSES], processes


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


def of_side(side: str, monkeypatch: pytest.MonkeyPatch, *ways: Way) -> tuning.Choice:
    monkeypatch.setenv(messages.SIDE, side)
    return fastest(list(ways))


def test_both_sides_of_a_gate_choose_by_the_times_of_both(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Base has met a busy moment, in which the better way looks worse."""

    def ways(fast: float) -> tuple[Way, Way]:
        return Way("slow", clock, 10), Way("fast", clock, fast)

    of_side("base", monkeypatch, *ways(11))
    of_side("current", monkeypatch, *ways(6))
    for side in ("base", "current") * 2:
        choice = of_side(side, monkeypatch, *(both := ways(20)))
        assert (choice.name, choice.from_cache, choice.place, both[0].runs) == ("fast", True, 1, 0)


@pytest.mark.parametrize("differs", ["code", "candidates", "library", "the other side never asks"])
def test_what_the_sides_of_a_gate_do_not_share_every_trial_times_anew(
    differs: str, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter("ababab")
    if differs == "code":
        monkeypatch.setattr(tuning, "source_digest", lambda package: next(digests))
    elif differs == "library":
        monkeypatch.setattr(tuning, "version", lambda: next(digests))
    for trial in range(3):
        of_base = [Way("slow", clock, 10), Way("fast", clock, 6)]
        of_current = [*of_base[: 1 if differs == "candidates" else 2], Way("other", clock, 20 - 9 * trial)]
        assert not of_side("base", monkeypatch, *of_base).from_cache
        if differs != "the other side never asks":
            choice = of_side("current", monkeypatch, *of_current[-2:])
            assert (choice.name, choice.from_cache) == (("other" if trial == 2 else of_current[-2].name), False)


def test_a_side_whose_code_takes_a_worse_way_takes_it_from_the_shared_times(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("base", "current"):
        of_side(side, monkeypatch, Way("slow", clock, 10), Way("fast", clock, 6))
    monkeypatch.setattr(tuning, "MARGIN", 0.1)
    assert of_side("current", monkeypatch, Way("slow", clock, 10), Way("fast", clock, 6)).name == "slow"


def test_fewer_instructions_have_times_of_their_own(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """ONEDNN_MAX_CPU_ISA changes what an implementation of one name does."""
    for _ in range(tuning.PROCESSES):
        fastest([Way("slow", clock, 10), Way("fast", clock, 6)])
    monkeypatch.setattr(tuning, "instructions", lambda: -1)
    limited = Way("slow", clock, 10)
    assert fastest([limited, Way("fast", clock, 12)]).name == "slow"
    assert limited.runs


@pytest.mark.parametrize(("most_bytes", "memories"), [(1 << 26, tuning.MEMORIES), (8, 1)])
def test_a_way_that_is_fast_on_some_memory_alone_is_judged_by_the_mean(
    most_bytes: int, memories: int, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "MOST_BYTES", most_bytes)

    class ByMemory(Way):
        def bind(self, *arrays: np.ndarray) -> Callable[[], None]:
            bound.append(Way(self.name, self._clock, 5 if not bound else self._ticks))
            return bound[-1].bind(*arrays)

    bound: list[Way] = []
    assert fastest([Way("steady", clock, 10), ByMemory("lucky", clock, 20)]).name == ("lucky", "steady")[memories > 1]
    assert len(bound) == memories
