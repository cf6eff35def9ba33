"""Training on a real GPU: every rung against the host path, captured graphs against eager steps, and memory that runs
out."""

import functools

import factories
import numpy as np
import pytest
from gpu import present_gpu, runs_here
from training import Trained, change_distance, loss_distance, run_step, small_session, train

from tcbench.core.errors import OutOfDeviceMemory, TrainingError
from tcbench.core.record import CudnnSettings, TrainSettings
from tcbench.engine.accelerators.cuda import cupti
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.backends.chainer.sites import open_site
from tcbench.engine.measure.loop import device_busy_s, profile
from tcbench.engine.measure.ranges import Ranges

pytestmark = pytest.mark.gpu

STEPS = 20
CONFIGS = [
    *("fp32", "fp32+batched", "fp32+nhwc", "fp32+fused", "fp32+batched+nhwc+fused"),
    *("fp32+batched+nhwc+fused+static_graph", "tf32"),
    *("fp16", "fp16+batched", "fp16+nhwc", "fp16+fused", "fp16+batched+nhwc+fused"),
    *("fp16+batched+nhwc+fused+static_graph", "fp16+batched+nhwc+fused+convstats", "fp16+batched+dynamic_scale"),
    *("fp32+im2col", "fp16+im2col", "fp16+nhwc+im2col"),
]


def gpu_site() -> OpenDevice:
    """Open a GPU without autotuning, which would take most of these tests' time."""
    return open_site(factories.make_cell("fp32", 8, device="cuda:0", cudnn=CudnnSettings(autotune=False)))


@functools.cache
def on_host(config: str) -> Trained:
    return train(config, STEPS)


@functools.cache
def on_gpu(config: str) -> Trained:
    return train(config, STEPS, site=gpu_site())


@pytest.mark.parametrize("config", CONFIGS)
def test_twenty_steps_on_the_gpu_train_as_fp32_on_the_host(config):
    if not runs_here(config):
        pytest.skip("this GPU's compute capability is too low")
    host, device = on_host("fp32"), on_gpu(config)
    single = config.startswith("fp32")
    # After twenty steps rounding has grown through ReLU's kinks; the first five are held tighter.
    assert np.isfinite(device.losses).all()
    first = np.abs(device.losses[:5] - host.losses[:5]) / host.losses[:5]
    assert first.max() < (5e-4 if single else 1e-2)
    assert loss_distance(device, host) < (1e-2 if single else 0.15)
    assert change_distance(device, host) < (0.25 if single else 0.6)


@pytest.mark.parametrize("config", ["fp32", "fp16+batched+nhwc+fused", "fp16+batched+dynamic_scale+nhwc+fused"])
def test_a_captured_step_replays_what_eager_steps_do(config):
    eager = on_gpu(config)
    captured = train(f"{config}+cuda_graph", STEPS, site=gpu_site())
    # The same kernels on the same numbers; some of cuDNN's sum in an order of their own in each run.
    assert loss_distance(captured, eager) < 1e-2
    assert change_distance(captured, eager) < 0.2


def test_a_captured_step_reads_no_memory_that_was_released():
    """Whatever the pools hold free is poisoned between replays."""
    site = gpu_site()
    config = "fp16+batched+nhwc+fused+cuda_graph"
    with small_session(config, site=site) as session:
        losses = []
        for _ in range(STEPS):
            losses.append(run_step(session))
            blocks = []
            for n_bytes in (1 << 12, 1 << 16, 1 << 20, 1 << 24):
                for _ in range(8):
                    block = site.accelerator.empty((n_bytes,), np.uint8)
                    block.data.memset_async(0xFF, n_bytes, site.accelerator.stream)
                    blocks.append(block)
            del blocks
    assert np.allclose(losses, on_gpu("fp16+batched+nhwc+fused").losses, rtol=1e-2)


@pytest.mark.parametrize("config", ["fp16", "fp16+batched+nhwc+fused+cuda_graph"])
def test_what_a_gpu_needs_for_a_step_is_known_however_late_its_host_launches(config):
    """Launching such small images takes the host longer than the GPU computes, unless it launches a graph."""
    with small_session(config, site=gpu_site()) as session:
        ranges = Ranges([phase.name for phase in session.phases])
        for _ in range(3):
            run_step(session)
        phases = profile(session, ranges, 5, 0)
        needed_s = device_busy_s(session, ranges, 5, session.clock.stall)
        host_s = sum(min(phase.host_s) for phase in phases)
        passed_s = sum(min(phase.device_s) for phase in phases)
    assert 1e-4 < needed_s < 1.1 * passed_s
    assert "cuda_graph" in config or needed_s < 0.7 * host_s


def test_cupti_that_was_attached_before_the_capture_records_what_a_replay_does():
    pytest.importorskip("cupti", exc_type=ImportError)
    recorder = cupti.CuptiActivities()
    config = "fp16+batched+nhwc+fused+cuda_graph"
    with small_session(config, site=gpu_site()) as session:
        before = [run_step(session) for _ in range(STEPS)]
        with recorder.recording():
            after = run_step(session)
    assert np.isfinite([*before, after]).all()
    assert sum(activity.kind == "kernel" and bool(activity.graph_node) for activity in recorder.activities) > 20
    assert recorder.dropped == 0


@pytest.mark.parametrize("config", ["fp16", "fp16+batched", "fp16+batched+cuda_graph"])
def test_a_static_scale_that_overflows_is_named(config):
    with pytest.raises(TrainingError, match="overflowed at a loss scale"):
        train(config, 5, site=gpu_site(), train=TrainSettings(loss_scale=2.0**22))


def test_a_dynamic_scale_comes_down_until_nothing_overflows():
    settings = TrainSettings(loss_scale=2.0**22)
    run = train("fp16+batched+dynamic_scale+cuda_graph", STEPS, site=gpu_site(), train=settings)
    assert np.isfinite(run.losses).all()
    assert np.isfinite(run.change).all()


def test_memory_that_runs_out_is_an_error_of_its_own():
    site = gpu_site()
    with site.scope(), pytest.raises(OutOfDeviceMemory, match="requested"):
        site.accelerator.empty((present_gpu().memory_bytes * 2,), np.uint8)
