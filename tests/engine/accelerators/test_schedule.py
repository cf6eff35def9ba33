"""Launches that are recorded and made again."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from reference_accelerator import ReferenceAccelerator

from tcbench.engine.accelerators.protocol import current, use
from tcbench.engine.accelerators.schedule import ScheduleRecorder
from tcbench.engine.work import Add, Relu
from tcbench.hardware.gpus import GpuProperties

SIZE = 512


@pytest.fixture
def accelerator() -> Iterator[ReferenceAccelerator]:
    """Memory that is not written before it is read is poisoned."""
    accelerator = ReferenceAccelerator(GpuProperties("A GPU", 90, 1, 1 << 30))
    with use(accelerator):
        yield accelerator


def values(number: float) -> Any:
    return np.full(SIZE, number, np.float32)


def add(a: Any, b: Any) -> Any:
    out = current().empty(a.shape, a.dtype)
    current().launch(Add(SIZE, "float32"), a, b, out)
    return out


def test_it_does_again_what_was_recorded_and_on_other_inputs(accelerator: ReferenceAccelerator) -> None:
    weights = values(10)
    schedule, y = ScheduleRecorder(accelerator).record(lambda x: add(add(x, x), weights), values(1))
    assert set(y) == {12}
    schedule(values(2))
    assert set(y) == {14}
    weights += 100
    schedule(values(3))
    assert set(y) == {116}


def test_an_input_that_is_launched_on_as_a_view_is_an_input(accelerator: ReferenceAccelerator) -> None:
    schedule, y = ScheduleRecorder(accelerator).record(lambda x: add(x.reshape(2, -1), x), values(1))
    schedule(values(4))
    assert np.all(y == 8)


def test_it_asks_for_the_same_work_and_for_no_memory(accelerator: ReferenceAccelerator) -> None:
    def run(x: Any) -> Any:
        y = add(x, x)
        current().launch(Relu(SIZE, "float32"), y, y)
        return y

    schedule, _ = ScheduleRecorder(accelerator).record(run, values(1))
    recorded, peak_bytes = [event.work for event in accelerator.events], accelerator.memory.peak_bytes
    accelerator.events.clear()
    schedule(values(2))
    assert [event.work for event in accelerator.events] == recorded == [Add(SIZE, "float32"), Relu(SIZE, "float32")]
    assert accelerator.memory.peak_bytes == peak_bytes


def test_memory_that_the_program_drops_is_used_again_and_what_it_keeps_is_not(
    accelerator: ReferenceAccelerator,
) -> None:
    freed = []

    def run(x: Any) -> None:
        y = x
        for number in range(12):
            y = add(y, x)
            if number % 4 == 0:
                freed.append(y)

    recorder = ScheduleRecorder(accelerator)
    before = accelerator.memory.alive_bytes
    schedule, _ = recorder.record(run, values(1))
    # Three that are kept, and two that take turns.
    assert accelerator.memory.alive_bytes - before == 5 * 4 * SIZE
    for x in (1, 2):
        schedule(values(x))
        assert [set(y) for y in freed] == [{2 * x}, {6 * x}, {10 * x}]


def test_schedules_of_one_recorder_run_in_turn_in_the_same_memory(accelerator: ReferenceAccelerator) -> None:
    recorder = ScheduleRecorder(accelerator)
    forward, (y, _) = recorder.record(lambda x: (add(x, x), add(add(x, x), x)), values(1))
    before = accelerator.memory.alive_bytes
    backward, gx = recorder.record(lambda gy: add(add(gy, y), y), values(10))
    assert accelerator.memory.alive_bytes == before + 4 * SIZE  # one is what forward had dropped
    for x, gy in ((1, 10), (3, 20)):
        forward(values(x))
        backward(values(gy))
        assert set(gx) == {gy + 4 * x}


@pytest.mark.parametrize("ask", ["copy", "upload", "download", "zeros"])
def test_what_could_not_be_done_again_cannot_be_asked_for(accelerator: ReferenceAccelerator, ask: str) -> None:
    with pytest.raises(AttributeError, match=ask):
        ScheduleRecorder(accelerator).record(lambda x: getattr(current(), ask)(x), values(1))
