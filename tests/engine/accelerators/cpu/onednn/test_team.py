"""Launches are the same whether a team in C makes them or threads of Python, and whoever else has the team."""

import ctypes
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu import compiled
from tcbench.engine.accelerators.cpu.onednn import convolution, team, tuning
from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator

pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler on this machine")
CONV = w.Conv2d(4, 32, 9, 9, 64, 3, 3, 1, 1, "NHWC", "float32")
WORKS: tuple[Any, ...] = (w.ConvFprop(CONV), w.ConvDgrad(CONV), w.ConvWgrad(CONV), w.Add(1 << 18, "float32"))


def launched(work: w.Work, accelerator: OneDnnAccelerator) -> np.ndarray:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(operand.shape).astype(operand.dtype) for operand in work.operands]
    accelerator.launch(work, *arrays)
    return arrays[-1]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_without_a_compiler_threads_of_python_do_the_same(
    work: Any, fresh_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_compiler = OneDnnAccelerator(threads=2)
    assert isinstance(with_compiler.engine.team, team.Team)
    by_team = launched(work, with_compiler)
    monkeypatch.setattr(compiled, "compiler", lambda: None)
    accelerator = OneDnnAccelerator(threads=2)
    assert isinstance(accelerator.engine.team, team.PythonTeam)
    choice = with_compiler.engine.prepared[work.key]
    monkeypatch.setattr(tuning, "fastest", lambda engine, work, ways: ways[choice.place])
    monkeypatch.setattr(convolution, "fastest", tuning.fastest)
    np.testing.assert_array_equal(launched(work, accelerator), by_team)


def test_a_launch_waits_for_no_other_threads_launch(fresh_engine: None) -> None:
    """The other thread's launch holds the team until this one is done."""
    engine = OneDnnAccelerator(threads=2).engine
    begun, goes_on, calls = threading.Event(), threading.Event(), []

    def note(primitive: int, *_: Any) -> int:
        calls.append(primitive)
        if primitive == 1:
            begun.set()
            assert goes_on.wait(20)
        return 0

    execute = team.EXECUTE(note)
    address = ctypes.cast(execute, ctypes.c_void_p)
    second_team = team.new_team(engine.set_threads, engine.set_handle, 2)
    first, second = (
        second_team.bind([[[team.PrimitiveCall(address, n, None, None, 0)]] * width]) for n, width in ((1, 1), (2, 3))
    )
    other = threading.Thread(target=first)
    other.start()
    assert begun.wait(20)
    assert second() == 0
    goes_on.set()
    other.join()
    assert calls == [1, 2, 2, 2]


def test_a_call_that_fails_ends_a_launch_on_threads_of_python() -> None:
    calls: list[int] = []
    execute = team.EXECUTE(lambda primitive, *_: calls.append(primitive) or 2 * (primitive == 3))
    call = [team.PrimitiveCall(ctypes.cast(execute, ctypes.c_void_p), n, None, None, 0) for n in range(1, 5)]
    launch = team.PythonTeam(lambda _: None, None).bind([[call[:1]] * 2, [call[1:3]], [call[3:]]])
    assert launch() == 2
    assert calls == [1, 1, 2, 3]


@pytest.mark.parametrize("result", ["bind", "places"])
def test_the_status_of_a_launch_that_fails_is_told(
    result: str, fresh_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = OneDnnAccelerator(threads=2)
    monkeypatch.setattr(accelerator.engine.team, result, lambda _: lambda *_: 2)
    with pytest.raises(RuntimeError, match="status 2"):
        launched(WORKS[0], accelerator)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("i < chunk->n && !atomic_load(&team->status)", "i < chunk->n"),
        ("atomic_exchange(&team->status, 0)", "atomic_load(&team->status)"),
        ("if (status) atomic_store(&team->status, status);", "(void)status;"),
        ("chunks + (word & 0xffff)", "chunks"),
        (" + places[i].offset", ""),
        ("addresses[places[i].array]", "addresses[0]"),
    ],
)
def test_a_team_that_does_not_make_each_call_once_is_not_taken(right: str, wrong: str, tmp_path: Path) -> None:
    text = Path(team.__file__).with_suffix(".c").read_text()
    assert text.count(right) == 1
    broken = tmp_path / "team.c"
    broken.write_text(text.replace(right, wrong))
    assert compiled.load_library(broken, team.schedules_correctly) is None
    assert compiled.load_library(Path(team.__file__).with_suffix(".c"), team.schedules_correctly) is not None
