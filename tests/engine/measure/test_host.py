"""cProfile's calls become stacks: phases apart, no time lost."""

import cProfile
import time

import pytest

from tcbench.engine.measure.host import Tracer, place, stacks_of


class Clock:
    """Goes on when work is done, not by itself."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


CLOCK = Clock()


@pytest.fixture(autouse=True)
def profiles_by_that_clock(monkeypatch):
    real = cProfile.Profile
    monkeypatch.setattr(cProfile, "Profile", lambda: real(CLOCK))


def spin(seconds: float) -> None:
    CLOCK.now_s += seconds


def shared(seconds: float) -> None:
    spin(seconds)


def forward() -> None:
    shared(0.03)


def backward() -> None:
    shared(0.06)
    spin(0.02)


def names(stacks) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for one in stacks:
        key = (one.phase, *(frame.name for frame in one.frames if frame.file))
        found[key] = found.get(key, 0.0) + one.seconds
    return found


def test_a_function_of_two_phases_is_not_mixed_up():
    tracer = Tracer()
    for _ in range(2):
        for run in (forward, backward):
            with tracer.phase(run.__name__):
                run()
    found = names(tracer.stacks(steps=2))
    assert found["forward", "forward", "shared", "spin"] == pytest.approx(0.03)
    assert found["backward", "backward", "shared", "spin"] == pytest.approx(0.06)
    assert found["backward", "backward", "spin"] == pytest.approx(0.02)
    assert sum(s for key, s in found.items() if key[0] == "backward") == pytest.approx(0.08)


def test_recursion_ends_and_loses_no_time():
    def down(depth: int) -> None:
        spin(0.004)
        if depth:
            down(depth - 1)

    profile = cProfile.Profile()
    profile.enable()
    down(4)
    profile.disable()
    assert sum(seconds for _, seconds in stacks_of(profile.getstats())) == pytest.approx(0.02)


def test_a_phase_is_known_by_the_place_of_its_function():
    class Replay:
        def __call__(self) -> None: ...

    assert place(forward) == f"{__file__}:{forward.__code__.co_firstlineno}"
    assert place(Replay()) == f"{__file__}:{Replay.__call__.__code__.co_firstlineno}"
    assert place(time.perf_counter) == ""
