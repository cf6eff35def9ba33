from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import math
import statistics
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import pytest

from tcbench.core.record import MOST_PHASE_TIMES, Measurement, MeasureSettings, PhaseTimes
from tcbench.core.recording import HostSpan
from tcbench.core.stopping import sample_size
from tcbench.engine.measure import loop, ranges
from tcbench.engine.measure.ranges import Ranges
from tcbench.engine.session import Facts, Layers, Phase
from tcbench.engine.world import ALONE, World


class FakeClock:
    """Time is the number of phases that have run."""

    of = "host"

    def __init__(self, session: FakeSession) -> None:
        self.session = session
        self.marks: list[float] = []
        self.reads = 0

    def mark(self) -> None:
        self.marks.append(self.session.now)

    def read(self) -> tuple[float, ...]:
        self.reads += 1
        marks, self.marks = self.marks, []
        return tuple(b - a for a, b in itertools.pairwise(marks))


class FakeSession:
    """`now`: when the device, if there is one, has done all; `host_now`: what the calls have taken."""

    def __init__(self, losses: tuple[float, ...] = (1.0,), cold_steps: int = 2) -> None:
        self.now = self.host_now = 0.0
        self.ran: list[str] = []
        self.asked_after: list[int] = []
        self.losses = losses
        self.cold_steps = cold_steps
        self.clock = FakeClock(self)
        self.phases = tuple(Phase(name, lambda name=name: self._run(name)) for name in ("io", "forward"))

    @property
    def steps(self) -> int:
        return self.ran.count("io")

    def _run(self, name: str) -> None:
        self.ran.append(name)
        self.now += 5.0 if self.steps <= self.cold_steps else 1.0
        self.host_now += 0.25

    def facts(self) -> Facts:
        self.asked_after.append(self.steps)
        loss = self.losses[min(len(self.asked_after), len(self.losses)) - 1]
        return Facts(loss, 100, "process", 2, 3, 4)

    def close(self) -> None: ...


SETTINGS = MeasureSettings(block_steps=6, min_timed_steps=10, profiled_steps=4)


def test_on_the_host_the_counted_steps_tell_the_phases():
    session = FakeSession()
    heard = []
    measured = loop.measure(session, SETTINGS, heard.append)
    assert (heard[-1].stage, heard[-1].steps) == ("profiled", 0)  # by which others know that the timed pass is over
    assert session.steps == 5 + 12
    assert measured.step_times_s == (2.0,) * 12
    assert [(phase.name, phase.host_s, phase.device_s) for phase in measured.phases] == [
        ("io", (1.0,) * 10, None),
        ("forward", (1.0,) * 10, None),
    ]


def test_a_cell_is_warmed_up_timed_and_profiled_apart_where_a_recording_is_asked_for():
    session = FakeSession()
    heard = []
    measured = loop.measure(session, SETTINGS, heard.append, profiling=loop.Profiling())
    assert measured.warmup_times_s == (10.0, 10.0, 2.0, 2.0, 2.0)
    assert measured.warmup_settled
    assert measured.gc_frozen
    assert gc.get_freeze_count() == 0
    assert measured.step_times_s == (2.0,) * 12
    assert len(measured.counted_times_s) == 10
    assert measured.stopped_by == "target"
    assert measured.profiled_steps == 4
    assert [phase.name for phase in measured.phases] == ["io", "forward"]
    assert session.steps == 5 + 12 + 4
    assert session.ran == ["io", "forward"] * 21
    assert [(p.stage, p.steps) for p in heard] == [
        *(("warm-up", n) for n in range(1, 6)),
        ("timed", 0),
        ("timed", 6),
        ("timed", 12),
        ("profiled", 0),
        ("profiled", 4),
    ]


@pytest.mark.parametrize(("done_at", "steps"), [(9, 9), (math.inf, SETTINGS.max_warmup_steps)])
def test_warm_up_goes_on_until_what_a_step_does_once_is_done_but_not_for_ever(done_at, steps):
    """Steps that lie within 10% of each other may all come before a graph is captured."""
    session = FakeSession()
    io, forward = session.phases
    session.phases = (io, Phase("forward", forward.run, lambda: session.steps >= done_at))
    assert len(loop.measure(session, SETTINGS).warmup_times_s) == steps


def test_the_clock_is_read_once_per_block_and_facts_are_asked_between_passes():
    session = FakeSession()
    loop.measure(session, SETTINGS)
    assert session.clock.reads == 5 + 2
    assert session.asked_after == [5, 17]


def test_the_first_step_of_a_block_does_not_count_for_stopping():
    """Blocks that begin with a step four times as fast: with it the interval would never be narrow."""
    session = FakeSession(cold_steps=0)
    loop.measure(session, SETTINGS)
    fast_first = FakeSession(cold_steps=0)
    run = fast_first._run

    def first_is_fast(name: str) -> None:
        run(name)
        if name == "io" and fast_first.steps > 3 and (fast_first.steps - 4) % 6 == 0:
            fast_first.now -= 0.75

    fast_first.phases = tuple(Phase(n, lambda n=n: first_is_fast(n)) for n in ("io", "forward"))
    measured = loop.measure(fast_first, SETTINGS)
    assert measured.step_times_s[0] < measured.step_times_s[1]
    assert measured.timed_steps == 12
    assert measured.stopped_by == "target"


def test_phases_of_the_last_of_many_steps_are_still_timed_ones():
    session = FakeSession()
    growing = iter(range(100_000))

    def slower() -> None:
        session._run("io")
        session.now += next(growing)  # so that the last steps are not like all

    session.phases = (Phase("io", slower),)
    measured = loop.measure(session, MeasureSettings(block_steps=6, target=1e-6, max_time_s=2e6, max_warmup_steps=5))
    assert len(measured.counted_times_s) > len(measured.phases[0].host_s) == MOST_PHASE_TIMES
    assert measured.phases_are_timed
    other = msgspec.structs.replace(measured, phases=(PhaseTimes(name="io", host_s=measured.counted_times_s),))
    assert not other.phases_are_timed


def test_a_noisy_cell_stops_at_its_budget():
    session = FakeSession()
    noise = iter(range(10_000))

    def noisy() -> None:
        session._run("io")
        session.now += next(noise) % 3

    session.phases = (Phase("io", noisy),)
    settings = MeasureSettings(block_steps=6, target=1e-6, max_time_s=100.0, max_warmup_steps=5)
    measured = loop.measure(session, settings)
    assert measured.stopped_by == "budget"
    assert 100.0 <= sum(measured.step_times_s) < 120.0
    assert not measured.warmup_settled


@pytest.mark.parametrize(
    ("losses", "when"), [((math.nan,), "after warm-up"), ((1.0, math.inf), "after the timed pass")]
)
def test_a_loss_that_is_not_finite_fails_the_trial(losses, when):
    with pytest.raises(loop.LossError, match=f"the loss is (nan|inf) {when}"):
        loop.measure(FakeSession(losses), SETTINGS)


@pytest.mark.parametrize("passed_s", [0.0, -1.0, math.nan])
def test_a_clock_that_stands_still_or_runs_backwards_fails_the_trial(monkeypatch, passed_s):
    monkeypatch.setattr(FakeClock, "read", lambda clock: (passed_s / 2,) * 2)
    with pytest.raises(loop.ClockError, match=f"the clock shows that a step took {passed_s:g} s; expected more than 0"):
        loop.measure(FakeSession(), SETTINGS)


def test_a_clock_that_was_not_asked_between_phases_fails_the_trial(monkeypatch):
    monkeypatch.setattr(FakeClock, "read", lambda clock: (1.0,))
    with pytest.raises(loop.ClockError, match="returned 1 times for 1 steps; expected one between any two marks"):
        loop.measure(FakeSession(), SETTINGS)


class FakeDomain:
    def __init__(self) -> None:
        self.open: list[object] = []
        self.closed: list[object] = []

    def get_event_attributes(self, message: str, payload: int | None = None):
        return SimpleNamespace(message=message, payload=payload)

    def push_range(self, attributes) -> None:
        self.open.append((attributes.message, attributes.payload))

    def pop_range(self) -> None:
        self.closed.append((len(self.open), self.open.pop()))


def test_every_step_and_phase_is_a_range_in_the_domain(monkeypatch):
    domain = FakeDomain()
    times = []
    monkeypatch.setattr(ranges.nvtx, "get_domain", lambda name: times.append(name) or domain)
    session = FakeSession()
    loop.run_block(session, Ranges(["io", "forward"]), 2, first=7)
    assert times == ["tcbench"]
    step = lambda n: [(2, ("io", None)), (2, ("forward", None)), (1, ("step", n))]  # noqa: E731
    assert domain.closed == [*step(7), *step(8)]
    assert not domain.open


def profiled(session: FakeSession, **fields):
    """Two steps, the fifth and the sixth, by the session's host."""
    profiling = loop.Profiling(loop.SpanRecorder(lambda: round(1e9 * session.host_now)), **fields)
    return loop.profile(session, Ranges(["io", "forward"]), 2, 5, profiling), profiling.recorder.spans


class DeviceClock(FakeClock):
    """A device that takes 1 s per phase of the fake session, and whose marks take the host 5 s."""

    of = "device"

    def mark(self) -> None:
        super().mark()
        self.session.host_now += 5.0


def test_on_a_device_each_phase_has_its_device_time_beside_its_host_time():
    """Host times are those of the calls alone: neither the device's time nor the marks are in them."""
    session = FakeSession(cold_steps=0)
    session.clock = DeviceClock(session)
    io, forward = session.phases

    def slow_io() -> None:
        io.run()
        session.now += session.steps  # 2 s in the first step, 3 s in the second

    session.phases = (Phase("io", slow_io), forward)
    phases, _ = profiled(session)
    assert [phase.device_s for phase in phases] == [(2.0, 3.0), (1.0, 1.0)]
    assert [phase.host_s for phase in phases] == [(0.25, 0.25)] * 2


class Layered(FakeSession):
    """Tells a layer of its second phase while it is asked to."""

    layers = None

    def _run(self, name: str) -> None:
        receiver = self.layers if name == "forward" else None
        if receiver is not None:
            receiver.begin("stem/conv")
        super()._run(name)
        if receiver is not None:
            receiver.end()

    @contextlib.contextmanager
    def detail(self, layers):
        self.layers = layers
        yield
        self.layers = None


def test_the_recorder_gets_steps_phases_and_layers_whose_times_are_those_of_the_phases():
    phases, spans = profiled(Layered(), layers=True)
    quarter_ns = 250_000_000
    assert spans == tuple(
        HostSpan(kind, name, step, phase, quarter_ns * (begin + place), quarter_ns * (end + place))
        for step, place in ((5, 0), (6, 2))
        for kind, name, phase, begin, end in (
            ("phase", "io", "io", 0, 1),
            ("layer", "stem/conv", "forward", 1, 2),
            ("phase", "forward", "forward", 1, 2),
            ("step", "step", None, 0, 2),
        )
    )
    assert [(phase.name, phase.host_s, phase.device_s) for phase in phases] == [
        (name, (0.25, 0.25), None) for name in ("io", "forward")
    ]


def test_layers_are_told_only_where_they_are_asked_for_and_the_session_can():
    for session, layers in ((Layered(), False), (FakeSession(), True)):
        assert {s.kind for s in profiled(session, layers=layers)[1]} == {"step", "phase"}


def test_profilers_run_around_the_profiled_steps_and_nothing_else():
    session = FakeSession()

    @contextlib.contextmanager
    def around():
        session.ran.append("start")
        yield
        session.ran.append("stop")

    settings = MeasureSettings(max_warmup_steps=3, profiled_steps=2)
    measured = loop.measure(session, settings, profiling=loop.Profiling(around=around))
    before = measured.warmup_steps + measured.timed_steps
    assert session.ran == [*["io", "forward"] * before, "start", *["io", "forward"] * 2, "stop"]


def test_on_a_device_a_block_is_ten_times_as_long_as_the_feeds_queue_and_its_times_stand_beside_the_hosts():
    session = FakeSession()
    session.clock = DeviceClock(session)
    assert session.facts().prefetch_depth == 2
    measured = loop.measure(session, SETTINGS)
    assert measured.block_steps == 20
    assert session.ran == ["io", "forward"] * (5 + 20 + 4)
    assert session.clock.reads == 5 + 1 + 1
    assert [phase.device_s for phase in measured.phases] == [(1.0,) * 4, (1.0,) * 4]


class Uneven(FakeSession):
    """The device's forward takes another 0 to 0.6 s, time and again."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = DeviceClock(self)

    def _run(self, name: str) -> None:
        super()._run(name)
        self.now += 0.2 * (self.steps % 4) if name == "forward" else 0.0


@pytest.mark.long
def test_on_a_device_so_many_steps_are_profiled_that_each_phase_is_known_as_well_as_the_step():
    def profiled(
        target: float, timed: int, profiling: loop.Profiling | None = None, max_time_s: float = 1e9
    ) -> Measurement:
        settings = msgspec.structs.replace(SETTINGS, target=target, min_timed_steps=timed, max_time_s=max_time_s)
        return loop.measure(Uneven(), settings, profiling=profiling)

    for target, steps in ((1.0, 4), (0.1, 13), (0.05, 52)):
        measured = profiled(target, 100)
        io, forward = measured.phases
        assert len(io.host_s) == len(io.device_s) == len(forward.device_s) == steps
        half_width_s = target * statistics.fmean(measured.counted_times_s)
        assert sample_size(forward.device_s[:4], half_width_s) == steps
    # Never more than were timed, and no more than were asked for where something records them.
    measured = profiled(0.05, 20)
    assert measured.profiled_steps == len(measured.counted_times_s) == 38
    assert profiled(0.05, 20, loop.Profiling()).profiled_steps == 4
    # Nor more than there is time for: these four take 2.3 s each.
    assert profiled(0.05, 20, max_time_s=25.0).profiled_steps == 10
    assert profiled(0.05, 20, max_time_s=1e-9).profiled_steps == 4


def test_a_device_that_tells_how_long_it_worked_is_asked_around_the_timed_pass():
    class Telling(FakeSession):
        def facts(self) -> Facts:
            return dataclasses.replace(super().facts(), busy_s=0.25 * self.steps)

    measured = loop.measure(Telling(), SETTINGS)
    assert measured.busy_s == pytest.approx(0.25)
    assert loop.at_host_speed(measured, 0.5).busy_s == pytest.approx(0.5)
    assert loop.measure(FakeSession(), SETTINGS).busy_s is None


class QueueClock(FakeClock):
    """A device's: a mark is passed when the device has come to it, and who reads waits for the device."""

    of = "device"

    def mark(self) -> None:
        self.session.now = max(self.session.now, self.session.host_now)
        super().mark()

    def read(self) -> tuple[float, ...]:
        self.session.host_now = max(self.session.now, self.session.host_now)
        return super().read()

    def stall(self, seconds: float) -> None:
        self.session.stalls.append(seconds)
        self.session.launch(0.0, seconds)


class Queued(FakeSession):
    """The host takes a second for a phase (`input_s` for the input), and the device 0.2 s from the launch on, when what
    precedes is done. Every third step takes the host four times as long. As CUDA's driver does, a launch blocks the
    host while `QUEUE` others wait in the stream."""

    QUEUE = 1024

    def __init__(self, input_s: float = 1.0) -> None:
        super().__init__()
        self.clock = QueueClock(self)
        self.stalls: list[float] = []
        self.ends: deque[float] = deque()
        self.input_s = input_s

    def _run(self, name: str) -> None:
        self.ran.append(name)
        slower = 4 if self.steps % 3 == 0 else 1
        self.launch((self.input_s if name == "io" else 1.0) * slower, 0.2)

    def launch(self, host_s: float, device_s: float) -> None:
        self.host_now += host_s
        while self.ends and self.ends[0] <= self.host_now:
            self.ends.popleft()
        if len(self.ends) >= self.QUEUE:
            self.host_now = self.ends.popleft()
        self.now = max(self.now, self.host_now) + device_s
        self.ends.append(self.now)


def needed_s(session: Queued, period: int = 1) -> float | None:
    now = lambda: session.host_now  # noqa: E731
    return loop.device_busy_s(session, Ranges(["io", "forward"]), 4, session.clock.stall, period, now)


def test_what_a_device_needs_is_found_behind_a_stall_though_it_waits_for_its_host(monkeypatch):
    monkeypatch.setattr(loop, "_STALL_MOST_S", 100.0)
    session = Queued()
    assert statistics.fmean(loop.run_block(session, Ranges(["io", "forward"]), 4, 0).steps_s) > 1.0
    # Rounds whose host was late (every third) are left out.
    assert needed_s(session) == pytest.approx(0.4)
    assert session.stalls == [0.0, *[2 * 1.0 + 0.01] * 5]
    # A stall that is too short every time tells nothing: the device waited for its host.
    monkeypatch.setattr(loop, "_STALL_MOST_S", 0.5)
    assert needed_s(Queued()) is None


def test_an_input_that_decodes_for_longer_than_any_stall_does_not_hide_what_the_device_needs(monkeypatch):
    monkeypatch.setattr(loop, "_STALL_MOST_S", 10.0)
    session = Queued(input_s=100.0)
    assert needed_s(session) == pytest.approx(0.4)
    assert session.steps == 2  # for which there is hardly time


def test_a_device_needs_the_median_of_rounds_and_not_the_least(monkeypatch):
    monkeypatch.setattr(loop, "_STALL_MOST_S", 100.0)
    session = Queued()
    session.phases = (session.phases[0], Phase("forward", lambda: session.launch(1.0, 0.1 * session.steps)))
    assert needed_s(session) == pytest.approx(0.2 + 0.1 * 4)  # of 2, 3, 4, 5 and 6


class Deep(Queued):
    """300 layers of ten launches each."""

    layers: Layers | None = None

    @contextlib.contextmanager
    def detail(self, layers: Layers) -> Iterator[None]:
        self.layers = layers
        yield

    def _run(self, name: str) -> None:
        if name == "io":
            super()._run(name)
            return
        for layer in range(300):
            if self.layers is not None:
                self.layers.begin(f"{layer}")
            for _ in range(10):
                self.launch(1e-3, 1e-4)
            if self.layers is not None:
                self.layers.end()


def test_more_launches_than_a_stream_takes_are_stalled_in_parts(monkeypatch):
    monkeypatch.setattr(loop, "_STALL_MOST_S", 100.0)
    session = Deep()
    assert needed_s(session) == pytest.approx(0.2 + 3000 * 1e-4)
    assert session.stalls[6:] == pytest.approx([2 * 0.5 + 0.01] * 30)
    monkeypatch.setattr(loop, "_LAYERS_BEHIND_STALL", 300)
    assert needed_s(Deep()) is None  # the host was blocked until the stall was over


def test_where_steps_differ_the_device_needs_what_one_takes_on_average(monkeypatch):
    monkeypatch.setattr(loop, "_STALL_MOST_S", 100.0)
    session = Queued()
    session.phases = (session.phases[0], Phase("forward", lambda: session.launch(1.0, 0.2 + session.steps % 2)))
    assert needed_s(session, period=2) == pytest.approx(0.4 + 0.5)


def test_a_measurement_has_what_the_device_needs_where_nothing_is_recorded(monkeypatch):
    settings = msgspec.structs.replace(SETTINGS, max_time_s=20.0)
    session = Queued()
    monkeypatch.setattr(loop.time, "perf_counter", lambda: session.host_now)
    monkeypatch.setattr(loop, "device_busy_s", functools.partial(loop.device_busy_s, now=loop.time.perf_counter))
    monkeypatch.setattr(loop, "_STALL_MOST_S", 100.0)
    assert loop.measure(session, settings).busy_s == pytest.approx(0.4)
    assert loop.measure(session, settings, profiling=loop.Profiling()).busy_s is None


@pytest.mark.parametrize(("input_s", "steps"), [(4.0, 6), (0.5, 12)])
def test_a_step_that_waits_for_its_input_is_timed_fewer_times(monkeypatch, input_s, steps):
    session = Queued(input_s)
    facts = dataclasses.replace(session.facts(), prefetch_depth=0)
    monkeypatch.setattr(session, "facts", lambda: facts)
    monkeypatch.setattr(loop.time, "perf_counter", lambda: session.host_now)
    settings = msgspec.structs.replace(SETTINGS, target=1e-6, max_time_s=1e-9)
    measured = loop.measure(session, settings, profiling=loop.Profiling())
    assert (measured.timed_steps, measured.stopped_by) == (steps, "budget")
    assert len(measured.counted_times_s) == steps - steps // 6


class Periodic(FakeSession):
    """Every fourth step takes ten times as long."""

    def facts(self) -> Facts:
        return dataclasses.replace(super().facts(), period=4)

    def _run(self, name: str) -> None:
        self.ran.append(name)
        self.now += 10.0 if self.steps % 4 == 0 else 1.0


def test_where_steps_repeat_after_some_of_them_whole_periods_are_counted_and_profiled():
    session = Periodic()
    measured = loop.measure(session, msgspec.structs.replace(SETTINGS, profiled_steps=5, max_time_s=1e-9))
    assert measured.block_steps == 9
    counted = measured.counted_times_s
    assert len(counted) % 8 == 0
    assert sum(counted) / len(counted) == (3 * 2.0 + 20.0) / 4
    assert [phase.host_s for phase in measured.phases] == [((3 * 1.0 + 10.0) / 4,) * 4] * 2
    recorded = loop.Profiling(loop.SpanRecorder(lambda: round(1e9 * session.now)))
    first, _ = loop.profile(session, loop.Ranges(["io", "forward"]), 8, 0, recorded, period=4)
    assert first.host_s == pytest.approx((3.25, 3.25))


class _Mpi:
    """Two ranks as threads: what rank 0 says, all get; nobody passes a barrier alone."""

    def __init__(self) -> None:
        self.gate = threading.Barrier(2, timeout=20)
        self.message: object = None

    def world(self, rank: int) -> World:
        mpi = SimpleNamespace(bcast=functools.partial(self.bcast, rank), Barrier=self.gate.wait)
        return World(rank, 2, rank, 2, mpi)

    def bcast(self, rank: int, value: object) -> object:
        if rank == 0:
            self.message = value
        self.gate.wait()
        message = self.message
        self.gate.wait()
        return message


def test_all_ranks_take_as_many_steps_as_rank_0_decides(monkeypatch):
    worlds = threading.local()
    monkeypatch.setattr(loop, "current", lambda: worlds.current)
    mpi = _Mpi()

    def rank(number: int) -> Measurement:
        worlds.current = mpi.world(number)
        session = FakeSession(cold_steps=2 + 10 * number)  # rank 1 alone would warm up longer, and stop later
        return loop.measure(session, SETTINGS)

    with ThreadPoolExecutor(2) as pool:
        measured = pool.map(rank, (0, 1))
    steps = [(m.warmup_steps, m.timed_steps, m.stopped_by, m.profiled_steps) for m in measured]
    assert steps[0] == steps[1]
    worlds.current = ALONE
    late = loop.measure(FakeSession(cold_steps=12), SETTINGS)
    assert late.warmup_steps != steps[1][0]


def test_of_short_steps_there_are_many_in_a_block_and_few_questions(monkeypatch):
    calls, decide = [], loop.StoppingRule.decide
    monkeypatch.setattr(loop.StoppingRule, "decide", lambda *arguments: calls.append(arguments) or decide(*arguments))

    class Short(FakeSession):
        def _run(self, name: str) -> None:
            self.ran.append(name)
            self.now += 2e-4 if len(self.ran) % 3 else 1e-4

    measured = loop.measure(Short(), MeasureSettings(max_time_s=10.0, target=1e-9, profiled_steps=1))
    assert len(measured.step_times_s) > 20_000
    assert 0.09 < sum(measured.step_times_s[: measured.block_steps]) < 0.2
    assert len(calls) < 80  # of more than 90 blocks, and the share falls


@pytest.mark.parametrize(("left_over_s", "told_s"), [(0.0, 4.0), (1.5, 4.0)], ids=["slow", "slow, and waits"])
def test_the_time_of_slow_facts_is_told_without_what_they_wait_for(left_over_s, told_s):
    """A loss that takes two seconds is no contradiction between two clocks; steps that were not over when the clock
    took them for done are one."""
    now_s = 0.0
    waits_s = left_over_s

    def facts():
        nonlocal now_s, waits_s
        now_s += 2.0 + waits_s
        waits_s = 0.0
        return Facts(1.0, 100, "process", 2, 3, 4)

    _, facts_s = loop._facts_after(SimpleNamespace(facts=facts), lambda: now_s)
    assert facts_s == told_s
    assert now_s - facts_s == left_over_s


def test_facts_that_take_no_time_are_asked_once():
    session = FakeSession()
    assert loop._facts_after(session, lambda: 0.0)[1] == 0.0
    assert len(session.asked_after) == 1
