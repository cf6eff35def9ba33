"""The stream as a queue, by a clock that only moves when it is read or slept on."""

import pytest

from tcbench.engine.accelerators.virtual import stream as streams
from tcbench.engine.accelerators.virtual.stream import CaptureError, Stream, StreamEvent, Task, elapsed_ms

READ_NS = 10
"""Reading the clock takes so long here: what a stream waits for ends this much too late at most."""


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def read(self) -> int:
        self.ns += READ_NS
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(streams, "_now", clock.read)
    monkeypatch.setattr(streams.time, "sleep", clock.sleep)
    return clock


@pytest.fixture
def stream(clock):
    return Stream()


def kernel(device_ns: int, driver_ns: int = 1_000) -> Task:
    return Task("kernel", "conv", "cudaLaunchKernel", driver_ns, device_ns)


def test_a_launch_takes_the_drivers_time_and_does_not_wait_for_the_work(clock, stream):
    before = clock.ns
    stream.put(kernel(1_000_000))
    assert clock.ns - before == pytest.approx(1_000, abs=4 * READ_NS)


def test_launches_take_the_drivers_time_on_average_whatever_simulating_takes(clock, stream):
    before = clock.ns
    for _ in range(100):
        stream.put(kernel(1))
        stream.owe(clock.ns - 300)  # the pool has been busy for as long
        clock.ns += 2 * READ_NS
    assert (clock.ns - before) / 100 == pytest.approx(1_000 - 300, abs=5 * READ_NS)


def test_what_the_host_did_besides_is_not_taken_for_simulating(clock, stream):
    stream.owe(clock.ns - 5_000_000)
    before = clock.ns
    for _ in range(2_000):
        stream.put(kernel(1))
    assert clock.ns - before >= 2_000 * 1_000 - 1_100_000


def test_work_begins_when_the_stream_is_free(clock, stream):
    """The host asks for three at once: they are done one after the other."""
    first, last = StreamEvent(), StreamEvent()
    first.record(stream)
    for _ in range(3):
        stream.put(kernel(100_000))
    last.record(stream)
    assert elapsed_ms(first, last) == pytest.approx(0.301, abs=0.001)
    stream.synchronize()
    assert clock.ns >= last.at_ns


def test_work_begins_when_it_is_asked_for_where_the_stream_has_been_idle(clock, stream):
    stream.put(kernel(100_000))
    clock.ns += 5_000_000
    late = clock.ns
    done = StreamEvent()
    stream.put(kernel(100_000))
    done.record(stream)
    assert done.at_ns == pytest.approx(late + 1_000 + 100_000, abs=5 * READ_NS)


def test_an_event_is_waited_for_really(clock, stream):
    event = StreamEvent()
    stream.put(kernel(3_000_000))
    event.record(stream)
    assert clock.ns < event.at_ns
    event.synchronize()
    assert event.at_ns <= clock.ns <= event.at_ns + 5 * READ_NS


def test_a_full_queue_makes_the_host_wait_for_the_first_in_it(clock, stream, monkeypatch):
    monkeypatch.setattr(streams, "QUEUE_DEPTH", 64)
    began = clock.ns
    for _ in range(64):
        stream.put(kernel(100_000))
    assert clock.ns - began < 2 * 64 * 1_000
    for _ in range(64):
        stream.put(kernel(100_000))
    # The host is as far ahead as the queue is deep, and the device has done all before.
    assert clock.ns - began == pytest.approx(64 * 100_000, rel=0.02)


def test_what_is_captured_is_not_done(clock, stream):
    stream.begin_capture()
    stream.put(kernel(1_000_000))
    with pytest.raises(CaptureError, match="cudaStreamSynchronize: the stream is being captured"):
        stream.synchronize()
    assert [task.name for task in stream.end_capture()] == ["conv"]
    assert stream.end_ns() == clock.ns
