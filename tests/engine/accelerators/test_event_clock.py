"""The event clock against a device that runs behind the host: an event has no time before someone waited for it."""

from __future__ import annotations

import time

import pytest
from gpu import accelerator_scope

from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.event_clock import EventClock


class Device:
    """Time goes on by what is added to `now_ms`; nothing that was recorded has happened until someone waits."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.events: list[Event] = []
        self.waits = 0

    def make_event(self) -> Event:
        self.events.append(Event(self))
        return self.events[-1]

    def elapsed_ms(self, before: Event, after: Event) -> float:
        assert before.passed and after.passed, "asked for a time that the device has not reached"
        return after.at_ms - before.at_ms


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = None
        self.passed = False

    def record(self, stream: str) -> None:
        self.stream, self.passed, self.at_ms = stream, False, self.device.now_ms

    def synchronize(self) -> None:
        self.device.waits += 1
        for event in self.device.events:
            event.passed |= event.stream is not None and event.at_ms <= self.at_ms


def run_block(clock: EventClock, device: Device, *steps_ms: float) -> tuple[float, ...]:
    clock.mark()
    for step_ms in steps_ms:
        device.now_ms += step_ms
        clock.mark()
    return clock.read()


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def clock(device: Device) -> EventClock:
    return EventClock("stream 7", device.make_event, device.elapsed_ms)


def test_a_block_gives_the_seconds_of_each_step_and_is_then_forgotten(device, clock):
    assert run_block(clock, device, 2.0, 5.0, 1.0) == pytest.approx((2e-3, 5e-3, 1e-3))
    assert clock.read() == ()
    assert run_block(clock, device, 4.0) == pytest.approx((4e-3,))


def test_marking_never_waits_and_reading_waits_once(device, clock):
    for _ in range(7):
        clock.mark()
    assert device.waits == 0
    clock.read()
    assert device.waits == 1
    clock.read()
    assert device.waits == 1


def test_events_are_used_again(device, clock):
    for _ in range(4):
        run_block(clock, device, *[1.0] * 6)
    assert len(device.events) == 7


def test_every_mark_is_on_the_stream_of_the_work(device, clock):
    run_block(clock, device, 1.0, 1.0)
    assert {event.stream for event in device.events} == {"stream 7"}


def test_it_says_that_its_time_is_the_devices(clock):
    assert clock.of == "device"


@pytest.mark.gpu
def test_on_a_gpu_the_work_is_timed_and_not_its_launch():
    with accelerator_scope(CudnnSettings(autotune=False)) as accelerator:
        clock = accelerator.clock
        clock.stall(0.0)
        clock.stream.synchronize()
        for _ in range(3):
            start = time.perf_counter()
            clock.mark()
            for _ in range(4):
                clock.stall(0.02)
                clock.mark()
            launched_s = time.perf_counter() - start
            steps_s = clock.read()
            assert len(steps_s) == 4
            assert all(0.0195 < step_s < 0.03 for step_s in steps_s)
            assert launched_s < 0.02
