"""NVML through a stand-in: what is asked, what becomes of no answer, and when sampling ends."""

import sys
import threading
import time

import pytest
from standin_nvml import NVMLError, NVMLLibraryMismatchError, StandInNvml, pynvml

from tcbench.core.record import GpuSample
from tcbench.engine.accelerators.cuda import nvml

__all__ = ["pynvml"]


@pytest.fixture
def gpu(pynvml: StandInNvml):
    gpu = nvml.open_gpu(0)
    yield gpu
    gpu.close()


def test_a_sample_holds_everything_in_the_units_of_its_names(gpu, pynvml):
    expected = GpuSample(1.25, 1755, 3201, 612.345, 54, 0x4, 97, 5 * 2**30, 0.0)
    assert gpu.sample(1.25) == expected
    pynvml.answers["nvmlDeviceGetTotalEnergyConsumption"] = 1_061_500
    assert gpu.sample(1.35).energy_j == 61.5


def test_an_older_driver_that_cannot_list_processes_answers_nothing(gpu, pynvml):
    for question in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        pynvml.answers[question] = NVMLLibraryMismatchError("use nvmlDeviceGetComputeRunningProcesses_v2")
    assert gpu.processes() == ()
    assert gpu.sample(0.0).sm_clock_mhz == 1755


@pytest.mark.plans
def test_what_the_standin_raises_is_what_the_real_module_does():
    real = pytest.importorskip("pynvml")
    assert not issubclass(real.NVMLLibraryMismatchError, real.NVMLError)
    assert not issubclass(NVMLLibraryMismatchError, NVMLError)

    @real.throwOnVersionMismatch
    def ask():
        raise real.NVMLError(real.NVML_ERROR_FUNCTION_NOT_FOUND)

    with pytest.raises(real.NVMLLibraryMismatchError):
        ask()


@pytest.mark.plans
def test_every_question_is_one_of_the_real_modules(gpu, pynvml, monkeypatch):
    monkeypatch.delitem(sys.modules, "pynvml")
    real = pytest.importorskip("pynvml")
    assert real is not pynvml
    gpu.state(), gpu.sample(0.0), gpu.processes()
    queries = {question for question, *_ in pynvml.questions}
    assert len(queries) > 15
    assert [question for question in queries if not callable(getattr(real, question, None))] == []


def test_under_mig_no_energy_is_told_for_the_counter_is_the_whole_cards(gpu, pynvml):
    pynvml.answers["nvmlDeviceGetMigMode"] = [1, 1]
    assert gpu.sample(0.0).energy_j is gpu.sample(0.1).energy_j is None
    assert gpu.sample(0.1).power_w == 612.345


def test_the_gpu_is_found_by_its_bus_and_not_by_its_number(pynvml):
    """CUDA_VISIBLE_DEVICES reorders what CUDA counts; NVML does not look at it."""
    gpu = nvml.open_gpu(1)
    gpu.sample(0.0)
    gpu.close()
    assert {arguments[0] for _, *arguments in pynvml.questions if arguments} == {"the GPU at 0000:1A:00.0"}


def test_without_nvml_there_is_nothing_to_watch_and_nothing_is_said(pynvml, monkeypatch, capsys, caplog):
    with caplog.at_level("INFO"):
        assert nvml.open_gpu(7) is None
        pynvml.answers["nvmlDeviceGetHandleByPciBusId"] = NVMLError("Not Found")
        assert nvml.watch(0, 0.0) is None
        pynvml.answers["nvmlInit"] = NVMLError("Driver Not Loaded")
        assert nvml.watch(0, 0.0) is None
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert nvml.watch(0, 0.0) is None
    assert (capsys.readouterr(), caplog.records) == (("", ""), [])


def test_a_trial_is_sampled_from_its_start_to_its_end_and_no_longer(pynvml):
    start = time.monotonic()
    watch = nvml.watch(0, start)
    time.sleep(0.35)
    seen = watch.stop(0.1, 0.3)
    took = time.monotonic() - start
    times_s = [sample.time_s for sample in seen.samples]
    assert times_s == sorted(times_s)
    assert 3 <= len(times_s) <= took / nvml.INTERVAL_S + 2
    assert times_s[0] < 0.1
    assert 0.35 <= times_s[-1] <= took
    assert seen.state.driver == "580.65.06"
    assert (seen.timed_from_s, seen.timed_to_s) == (0.1, 0.3)
    n_queries = len(pynvml.questions)
    time.sleep(0.25)
    assert len(pynvml.questions) == n_queries
    assert "nvml" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.gpu
def test_on_a_gpu_a_watch_sees_memory_taken_and_energy_spent():
    cupy = pytest.importorskip("cupy")
    pytest.importorskip("pynvml")
    watch = nvml.watch(0, time.monotonic())
    if watch is None:
        pytest.skip("NVML cannot be asked here")
    time.sleep(0.3)
    memory = cupy.cuda.Memory(2**30)
    time.sleep(0.5)
    seen = watch.stop()
    del memory
    used = [sample.memory_used_bytes for sample in seen.samples if sample.memory_used_bytes is not None]
    assert not used or used[-1] - used[0] >= 2**30
    assert seen.energy_j is None or seen.energy_j > 0
    assert any(
        value is not None
        for sample in seen.samples
        for value in (sample.sm_clock_mhz, sample.power_w, sample.temperature_c, sample.memory_used_bytes)
    )
