"""Feeds whose decoding is modelled."""

import contextlib
import dataclasses
from typing import Any

import factories
import numpy as np
import pytest

from tcbench.core.record import CudnnSettings, Input
from tcbench.engine.accelerators import protocol as accelerators
from tcbench.engine.accelerators.virtual.accelerator import VirtualAccelerator
from tcbench.engine.accelerators.virtual.activities import VirtualActivities
from tcbench.engine.backends import backend
from tcbench.engine.feeds import modelled
from tcbench.engine.feeds.base import FeedRecipe
from tcbench.engine.feeds.modelled import Decoder, MixedFeed, WorkersFeed, stages
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.hardware import gpus

SPEC = FeedSpec(None, 4, 32, 10, TensorSpec(), seed=0, threads=1, images_per_s=1e9)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 100_000
        monkeypatch.setattr(modelled.time, "sleep", self.pass_)

    def pass_(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def __call__(self) -> int:
        return self.now_ns


MS = 1_000_000


def _decoder(now: Time, depth: int, noted: list[tuple[int, int]] | None = None) -> Decoder:
    """One that takes half a second for a batch."""
    intervals = noted if noted is not None else []
    return Decoder(500 * MS, depth, lambda begin_ns, end_ns: intervals.append((begin_ns, end_ns)), now)


def test_whoever_takes_batches_at_once_gets_them_at_the_rate_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Time(monkeypatch)
    began, decoder = now(), _decoder(now, 2)
    for _ in range(10):
        decoder.take()
    assert now() - began == 10 * 500 * MS


def test_decoding_goes_on_beside_the_step_but_no_further_than_its_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    now, noted = Time(monkeypatch), list[tuple[int, int]]()
    began, decoder = now(), _decoder(now, 2, noted)
    now.pass_(30)
    waits = []
    for _ in range(4):
        before = now()
        decoder.take()
        waits.append(now() - before)
    assert waits == [0, 0, 500 * MS, 500 * MS]
    spans = [((begin - began) // MS, (end - began) // MS) for begin, end in noted]
    assert spans[:4] == [(0, 500), (500, 1000), (30_000, 30_500), (30_500, 31_000)]


def test_a_step_longer_than_decoding_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Time(monkeypatch)
    decoder = _decoder(now, 1)
    decoder.take()
    for _ in range(5):
        now.pass_(0.6)
        before = now()
        decoder.take()
        assert now() == before


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_workers_images_are_stacked_into_a_new_batch_each_time(layout: Any, dtype: Any) -> None:
    feed = WorkersFeed(dataclasses.replace(SPEC, tensor=TensorSpec(layout, dtype)))
    (x, t), (again, _) = feed.next(), feed.next()
    feed.close()
    assert x.shape == ((4, 3, 32, 32) if layout == "NCHW" else (4, 32, 32, 3))
    assert (x.dtype, t.dtype, t.shape) == (np.dtype(dtype), np.dtype(np.int32), (4,))
    assert x.flags.c_contiguous
    assert x is not again
    assert (feed.on_device, feed.prefetch_depth) == (False, 0)


def test_mixed_decoding_leaves_the_device_its_share_as_work() -> None:
    accelerator: Any = VirtualAccelerator(gpus.load("V100"), CudnnSettings())
    recorder = VirtualActivities()
    with accelerators.use(accelerator), recorder.recording():
        feed = MixedFeed(SPEC)
        x, _ = feed.next()
        assert feed.next()[0] is x
    kernels = [activity for activity in recorder.activities if activity.kind == "kernel"]
    assert len(kernels) == 2 * len(stages(4, 32, "float32"))
    assert [activity.kind for activity in recorder.activities if activity.kind != "kernel"] == ["input"] * 4
    assert (feed.on_device, feed.prefetch_depth) == (True, 2)


def test_the_devices_share_is_what_the_stages_read_and_write() -> None:
    # Of 224 pixels in float16: coefficients of 2 bytes and planes of 1, three colours, 256 rows in float32, 256 x 341.
    chroma, rgb, rows, scaled, cropped = 375 * 500 * 3 // 2, 375 * 500 * 3, 256 * 500 * 3, 256 * 341 * 3, 224 * 224 * 3
    each = 3 * chroma + (chroma + rgb) + (rgb + 4 * rows) + (4 * rows + scaled) + (scaled + 2 * cropped)
    assert sum(work.bytes for work in stages(64, 224, "float16")) == 64 * each


@pytest.mark.parametrize(("rungs", "expected"), [((), WorkersFeed), (("opencv",), WorkersFeed), (("dali",), "mixed")])
def test_a_rung_for_input_brings_its_model(rungs: tuple[str, ...], expected: Any) -> None:
    recipe = FeedRecipe(SPEC, lambda: None, WorkersFeed)
    for rung in rungs:
        recipe = backend("chainer").RUNGS[rung].feed(recipe, factories.make_cell())
    assert recipe.modelled is (MixedFeed if expected == "mixed" else expected)


def test_the_rate_of_decoding_is_not_the_hosts_and_is_stretched_with_the_device() -> None:
    cell = factories.make_cell(
        "fp32+dali", 8, device="virtual:V100", input=Input(kind="modelled", images_per_s=1e3), host_speed=0.5
    )
    with contextlib.closing(backend("chainer").open_session(cell)) as session:
        assert session.step.feed._decoder._batch_ns == 8 * MS * 0.5  # and what is measured is divided by the speed
