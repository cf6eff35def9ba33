import contextlib
import gc
import os
import sys
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import factories
import msgspec
import pytest
import threadpoolctl

from tcbench.core import messages, recording
from tcbench.core.errors import DataError, OutOfDeviceMemory, TraceError
from tcbench.core.messages import SEND, Building, Finished, ProfileRequest, Stepped, Tuning, decode
from tcbench.core.record import Input, MeasureSettings
from tcbench.engine import affinity
from tcbench.engine.accelerators import device
from tcbench.engine.accelerators.cuda import driver
from tcbench.engine.accelerators.cuda.driver import Gpu, Gpus
from tcbench.engine.clock import HostClock
from tcbench.engine.measure import worker
from tcbench.engine.measure.loop import LossError
from tcbench.engine.session import Phase
from tcbench.hardware import machine

GPU = Gpu(0, "Tesla V100-SXM2-16GB", (7, 0), 80, 16 * 2**30)


def run(monkeypatch, outcome, sent=None, cell=None):
    def measured(cell, send, request, device_name, on_session):
        if isinstance(outcome, BaseException):
            raise outcome
        send(Stepped("timed", 6, 0.1))
        return outcome

    monkeypatch.setattr(worker, "measure_cell", measured)
    return worker.run(cell or factories.make_cell(), (sent if sent is not None else []).append)


def test_a_measured_cell_is_ok_and_says_what_it_ran_on(monkeypatch):
    sent = []
    finished = run(monkeypatch, factories.make_measurement(), sent)
    assert (finished.status, finished.reason) == ("ok", None)
    assert finished.environment.packages["chainer"] == "7.8.1"
    assert "openblas" in finished.environment.blas
    assert finished.environment.gpu is None
    assert sent[0] == Building("imports", os.getpid())
    assert sent[-1] == Stepped("timed", 6, 0.1)


@pytest.mark.parametrize("order", [1, -1])
def test_the_blas_is_numpys_own_whichever_others_are_loaded(monkeypatch, order):
    """SciPy's wheel brings another; in which order they are listed differs from process to process."""
    from_wheels = [
        {"user_api": api, "internal_api": name, "version": version, "filepath": f"/site-packages/{path}"}
        for api, name, version, path in (
            ("blas", "openblas", "0.3.31", "numpy.libs/libscipy_openblas64_.so"),
            ("blas", "openblas", "0.3.30", "scipy.libs/libscipy_openblas.so"),
            ("openmp", "libgomp", None, "torch/lib/libgomp.so"),
        )
    ]
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: from_wheels[::order])
    assert worker._blas() == "openblas 0.3.31"
    of_the_system = [{**library, "filepath": "/usr/lib/libblas.so"} for library in from_wheels]
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: of_the_system[::order])
    assert worker._blas() == "openblas 0.3.30; openblas 0.3.31"


def test_an_own_step_tells_a_digest_of_each_of_its_files(tmp_path, monkeypatch):
    step = (
        "from tcbench import step as own\nimport coded_neighbour\ndef make(cell):\n"
        "    return own.step(lambda: None, loss=coded_neighbour.loss)\n"
    )
    (tmp_path / "coded_step.py").write_text(step, "utf-8")
    (tmp_path / "coded_neighbour.py").write_text("def loss(): return 4.0\n", "utf-8")
    (tmp_path / "unused.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    quick = MeasureSettings(max_time_s=0.01, profiled_steps=1)
    cell = factories.make_cell(backend="coded_step:make", rungs=("a",), input=Input(kind="own"), measure=quick)
    finished = worker.run(cell, lambda message: None)
    assert finished.status == "ok", finished.reason
    sources = {name: digest for name, digest in finished.environment.sources.items() if name != "tcbench/"}
    assert sorted(sources) == ["coded_neighbour.py", "coded_step.py"]
    assert sources == {name: digest for name, digest in machine.sources(sources).items() if name != "tcbench/"}


def test_what_is_deep_inside_a_step_may_send_messages_while_a_worker_runs(monkeypatch):
    sent, tuning = [], Tuning(1, 0.5, 60.0)
    monkeypatch.setattr(worker, "measure_cell", lambda *_: SEND.get()(tuning) or factories.make_measurement())
    worker.run(factories.make_cell(), sent.append)
    SEND.get()(tuning)
    assert sent[1:] == [tuning]
    assert decode(msgspec.json.encode(tuning)) == tuning


def test_the_base_of_many_ranks_stays_on_as_many_processors_as_one_of_them(monkeypatch):
    bound, finished = [], []
    monkeypatch.setenv(messages.CORES, "1")
    monkeypatch.setattr("sys.argv", ["worker", "3"])
    monkeypatch.setattr(affinity, "bind", bound.append)
    monkeypatch.setattr(worker, "measure_cell", lambda *arguments: arguments[-1](None) or factories.make_measurement())
    monkeypatch.setattr(worker, "serve", lambda _, work: finished.append(work(factories.make_cell(), print)))
    worker.main()
    (part,) = finished[0].measurement.ranks
    assert bound == [affinity.first(1)] * 2 == [part.cores] * 2


def test_where_a_device_computes_the_thread_that_drives_it_has_a_processor_of_its_own(monkeypatch):
    bound = []
    monkeypatch.setattr(affinity, "bind", bound.append)
    monkeypatch.setattr(affinity, "_place", lambda processor: (0, processor, processor))
    monkeypatch.setattr(worker, "run", lambda *arguments: arguments[-1](None) or Finished("failed", "no", None, None))
    worker.run_on((4, 5, 6), factories.make_cell(device="cuda:0"), print)
    assert bound == [(5, 6), (4,)]


@pytest.mark.parametrize(
    ("cell", "bound"),
    [
        (factories.make_cell(device="cuda:0"), [(2, 3), (0, 1, 2, 3)]),
        (factories.make_cell(device="virtual:V100"), []),
        (factories.make_cell(), []),
        (factories.make_cell(device="cuda:0", input=Input(kind="own")), []),
    ],
)
def test_one_rank_leaves_the_thread_that_drives_a_device_a_core_and_its_record_is_none_of_ranks(
    monkeypatch, cell, bound
):
    binds, finished = [], []
    monkeypatch.delenv(messages.CORES, raising=False)
    monkeypatch.setattr("sys.argv", ["worker", "3"])
    monkeypatch.setattr(affinity, "bind", binds.append)
    monkeypatch.setattr(affinity.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(affinity, "_place", lambda processor: (0, processor // 2, processor))
    monkeypatch.setattr(worker, "describe", lambda cell: factories.make_environment())
    monkeypatch.setattr(worker, "measure_cell", lambda *arguments: arguments[-1](None) or factories.make_measurement())
    monkeypatch.setattr(worker, "serve", lambda _, work: finished.append(work(cell, lambda message: None)))
    worker.main()
    assert binds == bound
    assert finished[0].measurement == factories.make_measurement()


def noted(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (MemoryError("Unable to allocate 9 TiB"), "oom", "out of memory: Unable to allocate 9 TiB"),
        (MemoryError(), "oom", "out of memory: an allocation failed"),
        (DataError("image x.jpg cannot be decoded"), "failed", "image x.jpg cannot be decoded"),
        (DataError(), "failed", "DataError"),
        (LossError("the loss is nan after warm-up"), "failed", "LossError: the loss is nan after warm-up"),
        (ValueError("two\nlines"), "failed", "ValueError: two lines"),
        # On a CPU it is no answer.
        (RuntimeError("out of memory slots"), "failed", "RuntimeError: out of memory slots"),
        (noted(ValueError("v"), "in phase\n'io'"), "failed", "ValueError: v (in phase 'io')"),
    ],
)
def test_what_goes_wrong_is_said_on_one_line(monkeypatch, capsys, error, status, reason):
    finished = run(monkeypatch, error)
    assert isinstance(finished, Finished)
    assert (finished.status, finished.reason) == (status, reason)
    assert finished.measurement is None
    assert finished.environment is not None


def test_a_session_that_cannot_be_closed_after_an_error_does_not_hide_it(monkeypatch, capsys):
    def fails():
        raise ValueError("the cause")

    cannot_close = Mock(side_effect=RuntimeError("cudaErrorStreamCaptureInvalidated"))
    session = SimpleNamespace(phases=(Phase("forward", fails),), clock=HostClock(), close=cannot_close)
    rungs = SimpleNamespace(problem=lambda names: None)
    monkeypatch.setattr(
        "tcbench.engine.backends.backend", lambda name: SimpleNamespace(RUNGS=rungs, open_session=lambda cell: session)
    )
    monkeypatch.setattr(worker, "describe", lambda cell: factories.make_environment())
    finished = worker.run(factories.make_cell(), lambda message: None)
    assert finished.reason == "ValueError: the cause (in phase 'forward')"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OutOfDeviceMemory("requested 1.0 GiB more"), "requested 1.0 GiB more"),
        (
            RuntimeError("cudaErrorMemoryAllocation: out of memory"),
            "cudaErrorMemoryAllocation: out of memory; the GPU has 16.0 GiB",
        ),
        (MemoryError("Unable to allocate 9 TiB"), "Unable to allocate 9 TiB"),
    ],
)
def test_memory_that_is_spent_on_a_gpu_is_an_answer(monkeypatch, capsys, error, reason):
    monkeypatch.setattr(driver, "gpus", lambda: Gpus((GPU,), (13, 0)))
    monkeypatch.setattr(worker, "describe", lambda cell: factories.make_environment())
    finished = run(monkeypatch, error, cell=factories.make_cell(device="cuda:0"))
    assert (finished.status, finished.reason) == ("oom", f"out of memory: {reason}")


def test_a_cell_on_a_gpu_says_which(monkeypatch):
    monkeypatch.setattr(driver, "gpus", lambda: Gpus((GPU,), (13, 0)))
    target = device.Device("cuda:0", GPU.name, GPU.memory_bytes, (7, 0))
    monkeypatch.setattr(worker, "find_device", lambda name, kinds: target)
    gpu = worker.describe(factories.make_cell(device="cuda:0")).gpu
    assert (gpu.name, gpu.multiprocessors, gpu.driver_cuda) == (GPU.name, 80, "13.0")


def test_the_profilers_run_on_a_gpu_only(monkeypatch):
    held = []

    @contextlib.contextmanager
    def holding(name):
        held.append(name)
        yield

    monkeypatch.setattr(driver, "profiled", lambda: holding("driver"))
    activities = SimpleNamespace(recording=lambda: holding("cupti"))
    with worker._profilers(factories.make_cell(), None):
        assert held == []
    with worker._profilers(factories.make_cell(device="cuda:0"), activities):
        assert held == ["cupti", "driver"]  # what CUPTI does at the first call it sees is over before the first step


def test_the_recorder_of_activities_is_made_before_a_session_may_capture_a_graph(monkeypatch, capsys):
    refuses = Mock(side_effect=TraceError("CUPTI cannot record"))
    monkeypatch.setattr(type(device.kind_of("cuda:0")), "activities", refuses)
    monkeypatch.setattr(worker, "describe", lambda cell: factories.make_environment())
    finished = worker.run(factories.make_cell(device="cuda:0"), lambda message: None, ProfileRequest("", True))
    assert (finished.status, finished.reason) == ("failed", "CUPTI cannot record")


def test_a_profiled_worker_leaves_its_recording(tmp_path, thin_network):
    path = tmp_path / "recording.json"
    few = MeasureSettings(max_time_s=0.1, min_timed_steps=4, profiled_steps=2)
    cell = factories.make_cell("fp32", 2, image_size=32, model="thin", input=Input(kind="synthetic"), measure=few)
    finished = worker.run(cell, lambda message: None, ProfileRequest(str(path)))
    assert finished.status == "ok", finished.reason
    recorded = recording.decode(path.read_bytes())
    assert recorded.phases == ("io", "forward", "backward", "update")
    assert [s.kind for s in recorded.spans].count("step") == 2
    assert recorded.thread == threading.get_native_id()
    assert (recorded.calls, recorded.activities, recorded.dropped) == ((), (), 0)
    assert "stem/conv" in {s.name for s in recorded.spans}


def test_a_rung_that_this_version_does_not_know_is_named(capsys):
    cell = factories.make_cell("fp32+from_tomorrow")
    finished = worker.run(cell, lambda message: None)
    assert finished.status == "failed"
    assert finished.reason.startswith("config 'fp32+from_tomorrow': unknown rung 'from_tomorrow' (known: batched, ")


def test_garbage_is_collected_in_steps_and_not_while_they_are_built(thin_network):
    seen = []
    few = MeasureSettings(max_time_s=0.1, min_timed_steps=4, profiled_steps=2)
    finished = worker.run(
        factories.make_cell("fp32", 2, image_size=32, model="thin", input=Input(kind="synthetic"), measure=few),
        lambda message: seen.append(("step", gc.isenabled())) if isinstance(message, Stepped) else None,
        on_session=lambda session: seen.append(("built", gc.isenabled())),
    )
    assert finished.status == "ok", finished.reason
    assert set(seen) == {("built", False), ("step", True)} and gc.isenabled()
