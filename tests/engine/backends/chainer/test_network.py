from __future__ import annotations

import numpy as np
import pytest

from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.network import Network
from tcbench.engine.backends.chainer.parts import Parts
from tcbench.engine.backends.initial import he_normal
from tcbench.engine.feeds.spec import TensorSpec
from tcbench.engine.models import MODELS
from tcbench.engine.models.resnet import RESNET50


def built(geometry, variant="v1", n_classes=10, spec=TensorSpec()):  # noqa: B008  (frozen)
    return Network(Parts(spec), geometry.stages(variant, n_classes), np.random.RandomState(0))


@pytest.fixture(scope="module")
def resnet50():
    return built(RESNET50, "v1", 1000)


def test_it_has_resnet50s_parameters(resnet50):
    assert sum(p.size for p in resnet50.params()) == 25_557_032 == RESNET50.parameters(1000)
    assert len(list(resnet50.params())) == 161


@pytest.mark.parametrize(("variant", "gmacs"), [("v1", 3.86), ("v1.5", 4.09)])
def test_it_has_resnet50s_multiply_accumulates(variant, gmacs):
    assert RESNET50.macs(variant, 224, 1000) / 1e9 == pytest.approx(gmacs, abs=0.005)


class _Macs(chainer.FunctionHook):
    """Counts multiply-accumulates from the shapes that convolutions and the classifier really get."""

    name = "macs"

    def __init__(self) -> None:
        self.total = 0

    def forward_postprocess(self, function, in_data) -> None:
        label = type(function).__name__
        if label == "Convolution":
            x, w = in_data
            out = (x.shape[2] + 2 * function.pad - w.shape[2]) // function.stride + 1
            self.total += x.shape[0] * out * out * w.size
        elif label == "Linear":
            self.total += in_data[0].shape[0] * in_data[1].size


@pytest.mark.usefixtures("on_the_processor")
@pytest.mark.parametrize("variant", ["v1", "v1.5"])
def test_the_built_network_does_the_arithmetic_that_its_description_counts(variant):
    model = built(RESNET50, variant, 10)
    with chainer.using_config("train", False), chainer.no_backprop_mode(), _Macs() as hook:
        y = model(np.zeros((1, 3, 64, 64), np.float32))
    assert y.shape == (1, 10)
    assert hook.total == RESNET50.macs(variant, 64, 10)


@pytest.mark.parametrize("variant", ["v1", "v1.5"])
def test_the_variants_differ_in_where_the_stride_sits(variant):
    strides = [tuple(conv.stride for conv in block.convs) for block in RESNET50.blocks(variant)]
    reducing = [s for s in strides if 2 in s]
    assert reducing == [(2, 1, 1) if variant == "v1" else (1, 2, 1)] * 3
    assert len(strides) == 16


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match="unknown variant 'v2'"):
        list(RESNET50.blocks("v2"))


@pytest.mark.usefixtures("on_the_processor")
def test_the_smallest_image_it_takes_leaves_a_pixel():
    least = MODELS["resnet50"].min_image_size
    model = built(RESNET50, "v1", 10)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        assert model(np.zeros((1, 3, least, least), np.float32)).shape == (1, 10)


def test_filters_are_hes_and_the_same_for_every_layout_and_dtype(resnet50):
    w = resnet50.stem.w.array
    assert w.std() == pytest.approx(np.sqrt(2 / (3 * 49)), rel=0.02)
    other = built(RESNET50, "v1", 1000, TensorSpec("NHWC", "float16"))
    assert np.array_equal(other.stem.w.array, w.transpose(0, 2, 3, 1).astype(np.float16))
    assert np.array_equal(other.head.w.array, resnet50.head.w.array.astype(np.float16))


def test_he_normal_has_the_variance_of_its_source():
    values = he_normal((400, 250), 8, np.random.RandomState(1))
    assert values.var() == pytest.approx(2 / 8, rel=0.02)
