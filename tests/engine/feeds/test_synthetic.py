"""The feed without input work."""

from typing import Any

import numpy as np
import pytest

from tcbench.engine.accelerators import protocol as accelerators
from tcbench.engine.accelerators.tracing import TracingAccelerator
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.engine.feeds.synthetic import UnfilledFeed, make_synthetic_feed
from tcbench.hardware import gpus


def _spec(seed: int = 1, layout: Any = "NCHW", dtype: Any = "float32") -> FeedSpec:
    return FeedSpec(None, 16, 32, 10, TensorSpec(layout, dtype), seed=seed, threads=1)


def test_activations_of_another_dtype_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="stored as float16 or bfloat16 or float32 or float64, not as int8"):
        TensorSpec(dtype="int8")


def test_one_batch_is_handed_out_again_and_again() -> None:
    feed = make_synthetic_feed(_spec())
    first, second = feed.next(), feed.next()
    feed.close()
    assert first[0] is second[0]
    assert first[1] is second[1]
    assert feed.prefetch_depth == 0


def test_the_seed_decides_the_batch() -> None:
    same, again, other = (make_synthetic_feed(_spec(seed)).next() for seed in (1, 1, 2))
    assert (same[0] == again[0]).all()
    assert (same[1] == again[1]).all()
    assert (same[0] != other[0]).any()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_it_is_stored_as_the_spec_says_with_normalised_pixels(layout: Any, dtype: Any) -> None:
    x, t = make_synthetic_feed(_spec(layout=layout, dtype=dtype)).next()
    expected, _ = make_synthetic_feed(_spec()).next()
    assert x.shape == ((16, 3, 32, 32) if layout == "NCHW" else (16, 32, 32, 3))
    assert x.dtype == dtype
    assert x.flags.c_contiguous
    assert (t.dtype, t.shape) == (np.dtype(np.int32), (16,))
    assert t.min() >= 0
    assert t.max() < 10
    pixels = x if layout == "NCHW" else x.transpose(0, 3, 1, 2)
    assert (pixels == expected.astype(dtype)).all()
    assert abs(float(expected.mean())) < 0.05
    assert abs(float(expected.std()) - 1) < 0.05


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_batch_for_a_trace_is_of_the_same_form_and_nothing_is_drawn_for_it(
    monkeypatch: pytest.MonkeyPatch, layout: Any, dtype: Any
) -> None:
    drawn = make_synthetic_feed(_spec(layout=layout, dtype=dtype))
    monkeypatch.setattr(np.random, "default_rng", lambda *_: pytest.fail("numbers were drawn"))
    accelerator = TracingAccelerator(gpus.load("H200").properties())
    with accelerators.use(accelerator):
        feed = UnfilledFeed(_spec(layout=layout, dtype=dtype))
    assert [(a.shape, a.dtype) for a in feed.next()] == [(a.shape, a.dtype) for a in drawn.next()]
    assert feed.next()[0] is feed.next()[0]
    assert (feed.on_device, feed.prefetch_depth) == (True, 0)
    assert accelerator.memory.alive_bytes >= sum(array.nbytes for array in drawn.next())
