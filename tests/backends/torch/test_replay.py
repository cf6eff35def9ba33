"""A step's capture on a stand-in for PyTorch's CUDA: what is called, and in what order."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")

from tcbench.backends.torch import replay


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    calls: list[str] = []

    class Stream:
        def __init__(self, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            calls.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self) -> None:
            calls.append("replay")

    def within(what: str):
        @contextlib.contextmanager
        def block(*_: object, **__: object):
            calls.append(f"({what}")
            yield
            calls.append(f"{what})")

        return block

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("current"))
    monkeypatch.setattr(torch.cuda, "stream", within("side"))
    monkeypatch.setattr(torch.cuda, "graph", within("capture"))
    return calls


def test_three_steps_are_eager_on_a_stream_of_their_own_the_fourth_is_captured_and_every_one_after_replayed(calls):
    step = replay.Replay((lambda: calls.append("forward"), lambda: calls.append("backward")))
    eager = ["side waits for current", "(side", "forward", "backward", "side)", "current waits for side"]
    for _ in range(3):
        calls.clear()
        step()
        assert calls == eager
    calls.clear()
    step()
    assert calls == ["(capture", "forward", "backward", "capture)", "replay"]
    calls.clear()
    step()
    assert calls == ["replay"]


def test_a_capture_that_fails_is_no_graph(calls, monkeypatch):
    def failing() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    step = replay.Replay((failing,))
    monkeypatch.setattr(step, "_calls", replay.EAGER_STEPS)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not permitted"):
            step()
    assert "replay" not in calls
