"""The fastest way is taken, and no time is spent on one that is hopeless."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from tcbench import work as w
from tcbench.accelerators.cpu.onednn import tuning

OPERANDS = w.Add(8, "float32").operands


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
    ticks: tuple[float, ...], taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    ways = [Way(f"way {i}", clock, each) for i, each in enumerate(ticks)]
    assert tuning.fastest(ways, OPERANDS).name == f"way {taken}"


def test_what_is_far_behind_is_run_twice_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    slow, fast, near = (Way(name, clock, ticks) for name, ticks in (("slow", 30), ("fast", 10), ("near", 12)))
    assert tuning.fastest([slow, fast, near], OPERANDS).name == "fast"
    assert (slow.runs, fast.runs, near.runs) == (2, 1 + tuning.RUNS, 1 + tuning.RUNS)
