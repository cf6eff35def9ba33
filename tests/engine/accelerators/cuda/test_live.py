"""The GPU's accelerator on a stand-in for CuPy: its own logic, with whole training steps through it."""

import gc
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import fake_cupy
import numpy as np
import pytest
from fake_cupy import Gpu, site
from reference import REFERENCE
from training import change_distance, loss_distance, numpys_processor, run_step, small_session, train

from tcbench.core.errors import OutOfDeviceMemory
from tcbench.core.record import CudnnSettings, TrainSettings
from tcbench.engine.accelerators.cuda import live
from tcbench.engine.accelerators.cuda.ceilings import measure_on
from tcbench.engine.measure import loop
from tcbench.engine.measure.ranges import Ranges
from tcbench.engine.work import Add, Conv2d, ConvFpropStats, Relu


@pytest.mark.parametrize("config", ["fp32", "fp32+nhwc+fused+batched"])
def test_training_on_it_is_training_by_numpy(cupy, config):
    device, host = (train(config, 2, site=place) for place in (site(), numpys_processor()))
    assert loss_distance(device, host) < 2e-6
    assert change_distance(device, host) < 2e-4


@pytest.mark.slow
@pytest.mark.parametrize("scale", [128.0, 2.0**22])
def test_a_captured_step_trains_as_the_eager_one_while_freed_memory_is_poisoned(cupy, scale):
    config = "fp16+batched+nhwc+fused+dynamic_scale"
    settings = TrainSettings(loss_scale=scale)
    eager = train(config, 6, site=site(), train=settings)
    captured = train(f"{config}+cuda_graph", 6, site=site(), train=settings)
    assert np.array_equal(captured.losses, eager.losses)
    assert np.array_equal(captured.change, eager.change)


@pytest.mark.long
@pytest.mark.parametrize("config", ["fp16+batched+nhwc+fused", "bf16+batched+nhwc+fused"])
def test_a_recorded_step_trains_as_the_eager_one_while_freed_memory_is_poisoned(cupy, config):
    eager, recorded = (train(name, 3, site=site()) for name in (config, f"{config}+static_graph"))
    assert np.array_equal(recorded.losses, eager.losses)
    assert np.array_equal(recorded.change, eager.change)


def test_each_piece_of_work_is_prepared_once(cupy):
    with small_session("fp32", site=site()) as session:
        run_step(session)
        after_one = len(cupy.prepared)
        run_step(session)
        choices = session.facts().plans
    assert len(cupy.prepared) == after_one > 50
    first = choices[0]
    assert first.work == "conv_fprop 8x3x32x32 k64 7x7/2 NCHW float32"
    assert (first.plan, first.time_s, first.first_time_s, first.from_cache) == ("engine 1", 1.0, 2.0, False)
    assert (first.timed, first.left_out, first.budget_s) == (2, 3, 9.0)
    assert len(choices) == len({choice.work for choice in choices})


def test_plans_are_tuned_within_the_budget_that_the_environment_names(cupy, monkeypatch):
    sizes = []
    monkeypatch.setenv("TCBENCH_TUNING_BUDGET_S", "7.5")
    monkeypatch.setattr(live, "Plans", lambda *_, tuning_budget_s, **settings: sizes.append(tuning_budget_s))
    site()
    assert sizes == [7.5]


def test_a_graphs_memory_is_its_own(accelerator):
    with accelerator.graph_memory():
        inside = accelerator.empty((1000,), np.float32).data.ptr
    outside = [accelerator.empty((1000,), np.float32) for _ in range(3)]
    assert inside not in [array.data.ptr for array in outside]


def test_a_batch_is_free_as_soon_as_it_was_copied(accelerator):
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    target = accelerator.empty((2, 3), np.float32)
    accelerator.copy(source, target)
    source[...] = -1
    assert accelerator.download(target).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_batches_in_flight_do_not_overwrite_each_other(accelerator):
    targets = [accelerator.empty((4,), np.float32) for _ in range(5)]
    for number, target in enumerate(targets):
        accelerator.copy(np.full(4, number, np.float32), target)
    assert [accelerator.download(target)[0] for target in targets] == [0, 1, 2, 3, 4]


def test_an_upload_keeps_shape_and_order(accelerator):
    for host in (np.float32(3).reshape(()), np.arange(6, dtype=np.float32).reshape(2, 3).T, np.zeros((0, 2))):
        array = accelerator.upload(host)
        assert array.shape == host.shape
        assert np.array_equal(accelerator.download(array), host)


def test_device_arrays_are_copied_on_the_device(accelerator, cupy):
    source, target = accelerator.upload(np.arange(4.0)), accelerator.zeros((4,), np.float64)
    sent = len(cupy.transfers())
    accelerator.copy(source, target)
    assert accelerator.download(target).tolist() == [0, 1, 2, 3]
    assert len(cupy.transfers()) == sent


def test_an_upload_is_done_when_it_returns(accelerator):
    source = np.ones(4, np.float32)
    target = accelerator.upload(source)
    source[...] = -1
    assert accelerator.download(target).tolist() == [1, 1, 1, 1]


def test_what_the_host_sends_while_capturing_is_sent_again_by_every_replay(accelerator):
    with accelerator.graph_memory():
        target = accelerator.empty((3,), np.float32)
        replay = accelerator.capture(lambda: accelerator.copy(np.ones(3, np.float32), target))
        for size in range(4):  # other copies of the same size do not use the graph's buffer
            accelerator.copy(np.full(3, size, np.float32), accelerator.empty((3,), np.float32))
        replay()
        assert accelerator.download(target).tolist() == [1, 1, 1]


def test_a_replay_keeps_alive_the_plans_that_its_graph_launches(cupy, monkeypatch):
    # As cuDNN's plans are captured: without a reference to them.
    graph = SimpleNamespace(upload=lambda stream: None, launch=lambda stream: None)
    monkeypatch.setattr(cupy.cuda.Stream, "begin_capture", lambda self: None)
    monkeypatch.setattr(cupy.cuda.Stream, "end_capture", lambda self: graph)
    accelerator = live.CudaAccelerator(0, CudnnSettings())
    replay = accelerator.capture(lambda: None)
    held = weakref.ref(accelerator)
    del accelerator
    gc.collect()
    assert held() is not None
    replay()
    del replay
    gc.collect()
    assert held() is None


def test_the_workspace_of_a_captured_graph_outlives_a_larger_one(accelerator, monkeypatch):
    accelerator._reserve(1000)
    with accelerator.graph_memory():
        accelerator.empty((10,), np.float32)
    first = accelerator._workspace_address
    accelerator._reserve(5000)
    addresses = [accelerator.empty((1000,), np.uint8).data.ptr for _ in range(8)]
    assert accelerator._workspace_address != first
    assert first not in addresses


@pytest.mark.parametrize("captured", [False, True])
def test_statistics_that_cudnn_adds_to_what_is_there_begin_at_zero(cupy, monkeypatch, captured):
    work = ConvFpropStats(Conv2d(2, 8, 4, 4, 16, 1, 1, 1, 0, "NHWC", "float16"))
    compute = REFERENCE[work.name]

    def added(work, x, w, y, total, squares):
        expected = total.copy(), squares.copy()
        compute(work, x, w, y, total, squares)
        total += expected[0]
        squares += expected[1]

    monkeypatch.setitem(REFERENCE, work.name, added)
    monkeypatch.setitem(cupy.properties, "major", 10)
    rng = np.random.default_rng(0)
    host = [rng.standard_normal(o.shape).astype(o.dtype) for o in work.operands]
    place = site()
    with place.scope(), place.accelerator.graph_memory():
        accelerator = place.accelerator
        device = [accelerator.upload(array) for array in host]
        run = accelerator.capture(lambda: accelerator.launch(work, *device)) if captured else None
        for _ in range(3):
            run() if run else accelerator.launch(work, *device)
        results = [accelerator.download(array) for array in device[2:]]
    compute(work, *host)
    for array, expected in zip(results, host[2:], strict=True):
        assert np.array_equal(array, expected)


def test_memory_that_runs_out_is_named_with_what_was_asked_and_what_there_is(cupy, monkeypatch):
    monkeypatch.setattr(Gpu, "limit_bytes", 1 << 20)
    place = site()
    with place.scope(), pytest.raises(OutOfDeviceMemory, match=r"requested 2\.0 MiB more.*the GPU has 80\.0 GiB"):
        place.accelerator.empty((1 << 21,), np.uint8)


def test_memory_that_runs_out_while_capturing_takes_nothing_from_the_graph(accelerator, monkeypatch):
    """CuPy would give free blocks back to CUDA and try again; the graph has their addresses."""
    with accelerator.graph_memory():
        accelerator.empty((1 << 20,), np.uint8)

        def run():
            accelerator.zeros((1 << 20,), np.uint8)  # free again at once
            monkeypatch.setattr(Gpu, "limit_bytes", 3 << 20)
            accelerator.empty((3 << 20,), np.uint8)

        with pytest.raises(OutOfDeviceMemory, match=r"requested 3\.0 MiB more.*the GPU has 80\.0 GiB"):
            accelerator.capture(run)
        assert accelerator.graph_bytes() == 1 << 20
        assert accelerator.empty((1 << 20,), np.uint8) is not None


def test_a_capture_that_a_failed_preparation_left_open_is_ended(accelerator, monkeypatch):
    accelerator.stream.begin_capture()
    accelerator._end_capture()
    accelerator._end_capture()
    assert accelerator.download(accelerator.zeros((2,), np.float32)).tolist() == [0, 0]


def test_an_error_while_capturing_is_the_one_that_is_seen(accelerator):
    with accelerator.graph_memory():
        with pytest.raises(ValueError, match="shape"):
            accelerator.capture(Mock(side_effect=ValueError("shape")))
        a = accelerator.zeros((4,), np.float32)
        accelerator.launch(Relu(4, "float32"), a, a)  # and the accelerator still works


def test_an_error_in_a_step_is_the_one_that_is_seen_where_it_broke_the_stream_too(cupy):
    place = site()
    with pytest.raises(ValueError, match="the cause") as raised, place.scope():
        place.accelerator.stream.synchronize = Mock(side_effect=RuntimeError("cudaErrorIllegalAddress"))
        raise ValueError("the cause")
    assert raised.value.__context__ is None


def test_a_stream_that_is_found_broken_at_the_end_is_an_error(cupy):
    place = site()
    with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"), place.scope():
        place.accelerator.stream.synchronize = Mock(side_effect=RuntimeError("cudaErrorIllegalAddress"))


def test_a_step_has_not_settled_until_its_graph_is_captured(cupy):
    with small_session("fp16+batched+nhwc+fused+cuda_graph", site=site()) as session:
        replayed = []
        while not all(phase.settled() for phase in session.phases):
            run_step(session)
            replayed.append(session.phases[1].run._replay is not None)
    assert replayed == [False] * (len(replayed) - 1) + [True]
    assert len(replayed) > 2


def test_ceilings_are_measured_on_it_by_its_clock(accelerator):
    measured = measure_on(accelerator, accelerator.clock, size=64, n_bytes=1000, rounds=3)
    assert measured["flops_s"] == pytest.approx(dict.fromkeys(["fp32", "fp16", "tf32"], 2 * 64**3 / 1e-3))
    assert measured["bandwidth_bytes_s"] == pytest.approx(2 * 1000 / 1e-3)


@pytest.mark.parametrize("config", ["fp32+batched", "fp32+batched+static_graph"])
def test_what_a_step_needs_is_found_though_a_stalled_stream_takes_only_some_launches(cupy, monkeypatch, config):
    monkeypatch.setattr(fake_cupy, "QUEUED_LAUNCHES", 30)
    with small_session(config, site=site()) as session:
        clock = session.site.accelerator.clock
        monkeypatch.setattr(session, "clock", clock)
        for _ in range(3):
            run_step(session)
        ranges = Ranges([phase.name for phase in session.phases])
        with pytest.raises(AssertionError, match="blocks the host"):
            loop.device_busy_s(session, ranges, 3, clock.stall)
        clock.stream.synchronize()
        monkeypatch.setattr(loop, "_LAYERS_BEHIND_STALL", 4)
        # By a clock that stands still the host is never late, however busy the machine is.
        assert loop.device_busy_s(session, ranges, 3, clock.stall, now=lambda: 0.0)


def test_work_is_told_apart_even_where_it_is_made_anew_for_each_launch(accelerator):
    a = accelerator.upload(np.ones(4, np.float32))
    for _ in range(3):
        accelerator.launch(Add(4, "float32"), a, a, a)
        accelerator.launch(Relu(4, "float32"), a, a)
    assert accelerator.download(a).tolist() == [8, 8, 8, 8]


def test_a_prepared_launch_is_made_at_each_of_its_calls(accelerator):
    a, b = (accelerator.upload(np.array(values, np.float32)) for values in ([1, 2], [10, 20]))
    add = accelerator.prepare(Add(2, "float32"), a, b, a)
    assert accelerator.download(a).tolist() == [1, 2]
    add()
    add()
    assert accelerator.download(a).tolist() == [21, 42]
