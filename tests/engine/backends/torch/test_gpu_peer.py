"""PyTorch's rungs on a real GPU: each within its parity, batches from the host and from DALI the same."""

import contextlib
import math

import factories
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: uv sync --extra cuda13 --extra torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU", allow_module_level=True)

from training import run_step

from tcbench.core.record import Input, MeasureSettings, TrainSettings
from tcbench.engine.backends import backend
from tcbench.engine.backends.torch.batches import TensorFeed
from tcbench.engine.backends.torch.sites import GpuSite
from tcbench.engine.feeds.dali import ON_CPU, DaliFeed
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.engine.measure import loop

pytestmark = pytest.mark.gpu

RUNGS = backend("torch").RUNGS
STEPS = 6


def cell(config: str, batch_size: int = 8, **changes):
    fields = {"device": "cuda:0", "n_classes": 10, "input": Input(kind="synthetic"), "threads": 2}
    fields["train"] = TrainSettings(learning_rate=1e-4)
    return factories.make_cell(config, batch_size, backend="torch", **{**fields, **changes})


def losses(config: str) -> np.ndarray:
    with contextlib.closing(backend("torch").open_session(cell(config))) as session:
        return np.array([run_step(session) for _ in range(STEPS)])


@pytest.mark.parametrize(
    ("base", "config"),
    [
        ("fp32", "tf32"),
        ("fp32", "fp32+cudnn_benchmark"),
        ("fp32", "fp32+fused_optimizer"),
        ("fp32", "fp32+cuda_graph"),
        ("fp16", "fp16+fused_optimizer+cuda_graph"),
        ("bf16", "bf16+nhwc+cuda_graph"),
        ("fp16", "fp16+nhwc+cudnn_benchmark+fused_optimizer+compile+cuda_graph"),
    ],
)
def test_a_config_trains_as_its_base_does(base, config):
    """The first loss is before any update, so it tells the forward pass; the last ones tell that updates happen, once
    a step. The whole untrained net amplifies rounding, hence the wide tolerance there."""
    config_losses, base_losses = losses(config), losses(base)
    assert config_losses[0] == pytest.approx(base_losses[0], rel=2e-2)
    assert config_losses[-1] == pytest.approx(base_losses[-1], rel=0.5)
    assert len(set(config_losses)) == STEPS


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_batches_from_the_host_and_from_dalis_gpu_are_what_the_host_reads(layout, images):
    pytest.importorskip("nvidia.dali")
    spec = FeedSpec(images, 8, 64, 24, TensorSpec(layout, "float32"), 1, 2, augment=False)
    site = GpuSite(0)
    expected = DaliFeed(spec, ON_CPU)
    sources = [TensorFeed(DaliFeed(spec, ON_CPU), spec, site), TensorFeed(DaliFeed(spec, site.dali()), spec, site)]
    for _ in range(5):  # more than there are pinned buffers
        x, t = expected.next()
        pixels = x if layout == "NCHW" else x.transpose(0, 3, 1, 2)
        for source in sources:
            y, u = source.next()
            assert y.device == site.device
            assert np.abs(y.cpu().numpy() - pixels).mean() < 0.05  # nvJPEG is not libjpeg
            assert np.array_equal(u.cpu().numpy(), t)
    for source in (expected, *sources):
        source.close()


def test_a_cell_is_measured_by_the_devices_clock():
    with contextlib.closing(backend("torch").open_session(cell("fp16+nhwc+fused_optimizer"))) as session:
        measured = loop.measure(session, MeasureSettings(max_time_s=0.5))
    assert session.clock.of == "device"
    assert measured.peak_memory_of == "device"
    assert measured.peak_memory_bytes > 2**27
    assert all(phase.device_s for phase in measured.phases)
    assert math.isfinite(measured.last_loss)


def test_memory_that_is_spent_is_out_of_memory():
    """Only a small part of the GPU's memory is allowed, so that a batch which does not fit is small on the host."""
    from tcbench.engine.measure import worker

    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        finished = worker.run(cell("fp32", batch_size=64, image_size=224), lambda _: None)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert (finished.status, finished.reason.partition(":")[0]) == ("oom", "out of memory")
