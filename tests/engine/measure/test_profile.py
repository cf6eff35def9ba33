"""What goes with the profiled pass: spans, layers, profilers."""

import contextlib

import pytest

from tcbench.core.record import MeasureSettings
from tcbench.core.session import Facts, Phase
from tcbench.engine.measure import loop
from tcbench.engine.measure.ranges import Ranges
from tcbench.hardware.clock import HostClock


class Session:
    """Two phases; it tells a layer in the second while it is asked to."""

    def __init__(self) -> None:
        self.clock = HostClock()
        self.layers = None
        self.happened: list[str] = []
        self.phases = (Phase("io", self._io), Phase("forward", self._forward))

    def _io(self) -> None:
        self.happened.append("io")

    def _forward(self) -> None:
        if self.layers is not None:
            self.layers.begin("stem/conv")
            self.layers.end()

    @contextlib.contextmanager
    def detail(self, layers):
        self.layers = layers
        yield
        self.layers = None

    def facts(self) -> Facts:
        return Facts(1.0, 100, "process", 2, 3, 4)

    def close(self) -> None: ...


def profiled(session, **fields):
    profiling = loop.Profiling(**fields)
    phases = loop.profile(session, Ranges(["io", "forward"]), 2, 5, profiling)
    return phases, profiling.recorder.spans


def test_the_recorder_gets_steps_phases_and_layers_whose_times_are_those_of_the_phases():
    phases, spans = profiled(Session(), layers=True)
    assert [(s.kind, s.name, s.step, s.phase) for s in spans] == [
        told
        for step in (5, 6)
        for told in (
            ("phase", "io", step, "io"),
            ("layer", "stem/conv", step, "forward"),
            ("phase", "forward", step, "forward"),
            ("step", "step", step, None),
        )
    ]
    forward = [(s.end_ns - s.begin_ns) * 1e-9 for s in spans if s.kind == "phase" and s.name == "forward"]
    assert phases[1].host_s == pytest.approx(forward)
    assert phases[1].name == "forward"


def test_layers_are_told_only_where_they_are_asked_for_and_the_session_can():
    assert {s.kind for s in profiled(Session())[1]} == {"step", "phase"}

    plain = Session()
    without = type("Without", (), {"phases": plain.phases, "clock": plain.clock})()
    assert {s.kind for s in profiled(without, layers=True)[1]} == {"step", "phase"}


def test_profilers_run_around_the_profiled_steps_and_nothing_else():
    session = Session()

    @contextlib.contextmanager
    def around():
        session.happened.append("start")
        yield
        session.happened.append("stop")

    settings = MeasureSettings(max_warmup_steps=3, profiled_steps=2, max_time_s=0.01)
    measured = loop.measure(session, settings, profiling=loop.Profiling(around=around))
    before = measured.warmup_steps + measured.timed_steps
    assert session.happened == ["io"] * before + ["start", "io", "io", "stop"]
