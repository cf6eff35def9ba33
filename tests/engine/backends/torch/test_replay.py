"""A step's capture on a stand-in for PyTorch's CUDA: what is called, and in what order."""

from __future__ import annotations

import contextlib
import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")

from torch_training import small_torch_session
from training import SMOOTH, Batches, run_step

from tcbench.core.record import Input
from tcbench.engine.backends.torch import replay
from tcbench.engine.backends.torch.session import TorchSession
from tcbench.engine.feeds import dali


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

    def within(label: str):
        @contextlib.contextmanager
        def block(*_: object, **__: object):
            calls.append(f"({label}")
            yield
            calls.append(f"{label})")

        return block

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("current"))
    monkeypatch.setattr(torch.cuda, "stream", within("side"))
    monkeypatch.setattr(torch.cuda, "graph", within("capture"))
    return calls


def test_three_steps_are_eager_on_a_stream_of_their_own_the_fourth_is_captured_and_every_one_after_replayed(calls):
    step = replay.TorchReplay((lambda: calls.append("forward"), lambda: calls.append("backward")))
    eager = ["side waits for current", "(side", "forward", "backward", "side)", "current waits for side"]
    for _ in range(3):
        calls.clear()
        step()
        assert calls == eager
        assert not step.captured()
    calls.clear()
    step()
    assert step.captured()
    assert calls == ["(capture", "forward", "backward", "capture)", "replay"]
    calls.clear()
    step()
    assert calls == ["replay"]


def test_a_capture_that_fails_is_no_graph(calls, monkeypatch):
    def failing() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    step = replay.TorchReplay((failing,))
    monkeypatch.setattr(step, "_calls", replay.EAGER_STEPS)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not permitted"):
            step()
    assert "replay" not in calls


class Lending(Batches):
    """A feed that behaves like DALI: each batch has a new address and is overwritten by the next call."""

    lent: tuple = ()

    def __init__(self, spec, placement) -> None:
        super().__init__(spec.tensor, spec.image_size, spec.seed)

    def next(self):
        for array in self.lent:
            array.fill(0)
        self.lent = super().next()
        return self.lent


@pytest.mark.parametrize("config", ["fp32+dali+cuda_graph", "fp32+cuda_graph+dali", "cuda_graph+dali+fp32"])
def test_a_captured_step_reads_every_batch_wherever_dali_stands_in_the_config(config, calls, monkeypatch):
    """`explain` adds a rung at the end: to a config with cuda_graph, dali comes after it."""
    monkeypatch.setattr(dali, "DaliFeed", Lending)
    monkeypatch.setattr(TorchSession, "images", lambda _: None)

    def losses(config: str) -> list[float]:
        settings = {"geometry": SMOOTH, "image_size": 32, "input": Input(kind="generated")}
        with small_torch_session(config, **settings) as session:
            captured = []

            @contextlib.contextmanager
            def capture(graph, **_):
                """A stand-in for a capture: a replay reads the memory of the captured batch, and computes."""
                step = session.step
                batch, runs = (step.x, step.t), session.phases[1].run._runs

                def replayed() -> None:
                    step.x, step.t = batch
                    for run in runs:
                        run()

                graph.replay = replayed
                captured.append(graph)
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(session.phases[1].run, "_runs", ())
                    yield

            monkeypatch.setattr(torch.cuda, "graph", capture)
            step_losses = [run_step(session) for _ in range(8)]
            assert len(captured) == ("cuda_graph" in config)
            return step_losses

    eager, replayed = losses("fp32+dali"), losses(config)
    assert replayed == eager
    assert all(previous != loss for previous, loss in itertools.pairwise(eager))
