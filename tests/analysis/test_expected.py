"""The one formula of a step, and what it makes of a measured one."""

import pytest
from factories import make_measurement, make_phases, make_record
from timelines import busy_timeline

from tcbench.analysis.advice import BY_TABLE, ON_HOST, expected_rate, modelled_rate
from tcbench.analysis.bottleneck import explain_records, explain_timeline
from tcbench.core.step_time import StepTime
from tcbench.show.format import plus_minus


def test_on_a_host_the_parts_add_up_and_beside_a_device_the_longest_decides() -> None:
    parts = {"device_s": 0.5, "host_s": 0.2, "input_s": 0.4}
    assert StepTime(**parts, on_host=True).step_s == pytest.approx(1.1)
    assert StepTime(**parts, overlapped=True, on_host=True).step_s == pytest.approx(1.1)  # the same processors decode
    assert StepTime(**parts).step_s == pytest.approx(0.6)  # the host makes the batch first
    assert StepTime(**parts, overlapped=True).step_s == pytest.approx(0.5)
    assert StepTime(device_s=0.1, host_s=0.2, input_s=0.4, overlapped=True).step_s == pytest.approx(0.4)


def test_on_a_host_a_whole_step_is_in_proportion_to_what_was_measured() -> None:
    measurement = make_measurement([1.0] * 12, phases=make_phases({"forward": 1.0}))
    measured = explain_records([make_record(batch_size=8, measurement=measurement)])
    base_parts, other = (StepTime(device_s=s, host_s=0.05, on_host=True) for s in (0.75, 0.35))
    rate = expected_rate(measured, base_parts, other)
    assert rate.value == pytest.approx(8 / 0.5)
    assert (rate.low, rate.high) == pytest.approx((rate.value * (1 - ON_HOST), rate.value * (1 + ON_HOST)))


def test_what_a_busy_machine_timed_has_no_error_of_the_model() -> None:
    measurement = make_measurement([1.0] * 12, phases=make_phases({"forward": 1.0}))
    measured = explain_records([make_record(batch_size=8, measurement=measurement)])
    quiet, busy = (StepTime(device_s=0.5, on_host=True, lost=lost) for lost in (0.0, 0.2))
    assert plus_minus(modelled_rate(8, quiet)) == "± 15.0%"
    assert plus_minus(modelled_rate(8, busy)) == "or more"  # its step is too slow
    assert plus_minus(expected_rate(measured, quiet, busy)) == "± unknown"
    assert plus_minus(expected_rate(measured, busy, quiet)) == "± unknown"


def test_beside_a_gpu_each_stage_is_in_proportion_to_its_own_part() -> None:
    measured = explain_timeline(busy_timeline())  # host 80 ms and input 20 ms in one thread, GPU 60 ms
    base_parts = StepTime(device_s=0.030, host_s=0.020)
    images = measured.images_per_step

    def after(**parts: float) -> float:
        return images / expected_rate(measured, base_parts, StepTime(**parts)).value

    assert after(device_s=0.030, host_s=0.020) == pytest.approx(0.100)
    assert after(device_s=0.030, host_s=0.005) == pytest.approx(0.060)  # the GPU fills it now
    assert after(device_s=0.015, host_s=0.020) == pytest.approx(0.100)  # faster kernels alone bring nothing
    assert after(device_s=0.030, host_s=0.020, overlapped=True) == pytest.approx(0.080)
    assert expected_rate(measured, base_parts, base_parts).relative_half_width == pytest.approx(BY_TABLE)
