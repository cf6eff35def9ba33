"""The PyTorch session as a session: its phases, its facts, its feeds, what it changes and puts back."""

import contextlib
import math

import factories
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")

from torch_training import small_torch_session
from training import run_step

from tcbench.core.errors import SelectionError, TrainingError
from tcbench.core.record import Input, MeasureSettings, TrainSettings
from tcbench.engine.backends import backend
from tcbench.engine.backends.torch import batches
from tcbench.engine.backends.torch.sites import Site, open_site
from tcbench.engine.feeds.base import Feed, FeedRecipe
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.engine.measure import loop
from tcbench.engine.models.resnet import RESNET50


def spec(images: ImageFolder | None, layout="NCHW", dtype="float32") -> FeedSpec:
    return FeedSpec(images, 4, 32, 24, TensorSpec(layout, dtype), seed=1, threads=1)


def test_a_whole_cell_is_measured():
    cell = factories.make_cell(
        "fp32+nhwc+fused_optimizer",
        2,
        backend="torch",
        image_size=32,
        input=Input(kind="synthetic"),
        threads=1,
        measure=MeasureSettings(max_time_s=0.5),
    )
    with contextlib.closing(backend("torch").open_session(cell)) as session:
        assert [phase.name for phase in session.phases] == ["io", "forward", "backward", "update"]
        measured = loop.measure(session, cell.measure)
    assert math.isfinite(measured.last_loss)
    assert measured.parameters == RESNET50.parameters(1000)
    assert measured.macs_per_image == RESNET50.macs("v1", 32, 1000)
    assert (measured.peak_memory_of, measured.prefetch_depth) == ("process", 0)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ("fp32", set()),
        ("fp32+nhwc", {"memory_format"}),
        ("bf16", {"autocast"}),
        ("fp16", {"autocast", "scaler", "pixels"}),
        ("fp32+fused_optimizer", {"fused"}),
        ("fp32+foreach", {"foreach"}),
    ],
)
def test_a_rung_changes_what_it_says_and_nothing_else(config, changes):
    with small_torch_session(config) as session:
        seen: dict[str, object] = {}
        hook = session.model.block1.a.conv.register_forward_hook(lambda _, __, y: seen.update(y=y))
        session.step.io()
        session.step.forward()
        hook.remove()
        group = session.step.optimizer._sgd.param_groups[0]
        weight = session.model.block1.a.conv.weight
        observed = {
            "memory_format": seen["y"].is_contiguous(memory_format=torch.channels_last)
            and not seen["y"].is_contiguous(),
            "autocast": seen["y"].dtype != torch.float32,
            "scaler": session.step.optimizer._scaler.is_enabled(),
            "pixels": session.step.x.dtype != torch.float32,
            "fused": bool(group["fused"]),
            "foreach": bool(group["foreach"]),
        }
        assert {name for name, changed in observed.items() if changed} == changes
        assert weight.dtype == torch.float32


def test_compile_calls_what_it_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or (lambda x: model(x)))
    with small_torch_session("fp32+compile") as session:
        assert compiled == [session.model]
        assert session.step.model is not session.model


def test_gradients_that_overflow_under_a_static_scale_are_an_error():
    settings = TrainSettings(learning_rate=0.01, loss_scale=2.0**30)
    with small_torch_session("fp16", train=settings) as session:
        for phase in session.phases:
            phase.run()
        with pytest.raises(TrainingError, match=r"loss_scale"):
            session.facts()


def test_a_static_scale_stays_what_it_is():
    with small_torch_session("fp16") as session:
        for _ in range(3):
            run_step(session)
        assert session.step.optimizer._scaler.get_scale() == 128.0


def test_what_a_session_sets_is_put_back():
    def settings():
        return torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = settings()
    with small_torch_session("fp32", threads=2):
        assert torch.get_num_threads() == 2
        assert torch.backends.cudnn.allow_tf32 is False
    assert settings() == before


# ------------------------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("make", ["pillow", "dali", "opencv"])
def test_a_feeds_batch_arrives_without_a_copy_as_the_layout_says(images, layout, make):
    pytest.importorskip({"dali": "nvidia.dali", "opencv": "cv2"}.get(make, "PIL"))
    start = FeedRecipe(spec(images, layout), batches.pillow)
    recipe = start if make == "pillow" else backend("torch").RUNGS[make].feed(start, None)
    with contextlib.closing(recipe.make(Site())) as source:
        x, t = source.next()
        assert x.shape == (4, 3, 32, 32)
        assert t.dtype == torch.int64
        assert x.is_contiguous(memory_format=torch.channels_last if layout == "NHWC" else torch.contiguous_format)
        assert source.prefetch_depth == (2 if make == "dali" else 0)


class Counting(Feed):
    """A feed that counts, and hands out the same memory every time."""

    prefetch_depth = 1
    decoding = "on the GPU"

    def __init__(self) -> None:
        self.x, self.t, self.closed = np.zeros((2, 3, 4, 4), np.float32), np.zeros(2, np.int32), 0

    def next(self):
        self.x += 1
        return self.x, self.t

    def close(self) -> None:
        self.closed += 1


def tensor_feed(feed: Feed) -> batches.TensorFeed:
    return batches.TensorFeed(feed, spec(None), Site())


def test_arriving_batches_share_the_feeds_memory():
    feed = Counting()
    x, _ = tensor_feed(feed).next()
    assert x.data_ptr() == feed.x.ctypes.data


def test_batches_at_fixed_addresses_are_copies_at_the_same_place():
    feed = Counting()
    source = batches.at_fixed_addresses(tensor_feed(feed))
    first, _ = source.next()
    assert first.data_ptr() != feed.x.ctypes.data
    assert first.max() == 1
    second, _ = source.next()
    assert second.data_ptr() == first.data_ptr()
    assert second.max() == 2
    source.close()
    assert (source.prefetch_depth, source.decoding, feed.closed) == (1, "on the GPU", 1)


def test_a_kept_batch_is_made_once():
    feed = Counting()
    source = batches.ConstantFeed(tensor_feed(feed))
    assert source.next()[0] is source.next()[0]
    assert source.next()[0].max() == 1
    assert source.prefetch_depth == 0
    assert batches.at_fixed_addresses(source) is source, "no copy of what never changes"


# -------------------------------------------------------------------------------------------------------------- sites


def test_a_pytorch_that_finds_no_gpu_says_so_and_what_mends_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SelectionError, match=r"finds no GPU .*uv sync --extra cuda13 --extra torch"):
        open_site("cuda:0")
