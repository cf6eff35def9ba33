"""Every network is what its description counts, and trains with every rung as without, and as in float64."""

import numpy as np
import pytest
from networks import THIN
from training import change_distance, loss_distance, numpys_processor, on_numpy, small_session, train

from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.network import ChainerNetwork
from tcbench.engine.backends.chainer.parts import Parts
from tcbench.engine.backends.initial import he_normal
from tcbench.engine.feeds.spec import TensorSpec
from tcbench.engine.models import MODELS
from tcbench.engine.models.googlenet import GoogLeNet
from tcbench.engine.models.resnet import ResNet
from tcbench.engine.models.small import WELL_CONDITIONED

NARROW = ResNet("narrow ResNet-50", blocks_per_stage=(2, 1, 1, 1), width=8)
NETWORKS = pytest.mark.parametrize("model", THIN)


def trained(config, model, steps=2, **changes):
    geometry, image_size = THIN[model]
    return train(config, steps, geometry=geometry, image_size=image_size, **changes)


SLOW = ("fp32", "fp32+im2col", "fp32+nhwc", "bf16+batched", "fp16+nhwc+fused", "fp16+batched+nhwc+fused+static_graph")


@NETWORKS
@pytest.mark.parametrize(
    "config",
    ["fp32+batched+nhwc+fused+static_graph", *(pytest.param(config, marks=pytest.mark.slow) for config in SLOW)],
)
def test_a_network_trains_in_float32_as_in_float64(model, config):
    """Training in 16 bits agrees roughly."""
    single = config.startswith("fp32")
    exact, approximate = trained("fp64", model), trained(config, model, site=numpys_processor() if single else None)
    assert loss_distance(approximate, exact) < (1e-4 if single else 5e-2)
    assert change_distance(approximate, exact) < (2e-2 if single else 0.5)


@NETWORKS
@pytest.mark.parametrize("config", [pytest.param("fp32", marks=pytest.mark.slow), "fp16+batched+nhwc+fused"])
def test_a_network_takes_the_path_of_a_gpu_to_the_same_numbers(model, config):
    """Plain references replace kernels and cuDNN."""
    host = trained(config, model, site=numpys_processor())
    gpu = trained(config, model, site=on_numpy())
    assert loss_distance(gpu, host) < (1e-4 if config == "fp32" else 3e-2)


def test_a_captured_step_drops_other_values_each_time():
    captured, plain = (trained(config, "alexnet", 5, site=on_numpy()) for config in ("fp32+cuda_graph", "fp32"))
    np.testing.assert_allclose(captured.losses, plain.losses, rtol=1e-5)


def built(geometry, variant="v1", n_classes=10, spec=TensorSpec()):  # noqa: B008  (frozen)
    return ChainerNetwork(Parts(spec), geometry.stages(variant, n_classes), np.random.RandomState(0))


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
@pytest.mark.parametrize(
    ("geometry", "variant"),
    [(NARROW, "v1.5"), *((geometry, "v1") for geometry in (NARROW, *(thin for thin, _ in THIN.values())))],
    ids=str,
)
def test_the_built_network_has_the_parameters_and_does_the_arithmetic_that_its_description_counts(geometry, variant):
    network = built(geometry, variant)
    assert sum(p.size for p in network.params()) == geometry.parameters(10)
    with chainer.using_config("train", True), chainer.no_backprop_mode(), _Macs() as hook:
        logits = network.loss(np.zeros((1, 3, 64, 64), np.float32), np.zeros(1, np.int32))
    assert logits.shape == ()
    assert hook.total == geometry.macs(variant, 64, 10)


def test_filters_are_hes_and_the_same_for_every_layout_and_dtype():
    network, other = built(WELL_CONDITIONED), built(WELL_CONDITIONED, spec=TensorSpec("NHWC", "float16"))
    w = network.stem.w.array
    assert w.std() == pytest.approx(np.sqrt(2 / (3 * 49)), rel=0.02)
    assert he_normal((400, 250), 8, np.random.RandomState(1)).var() == pytest.approx(2 / 8, rel=0.02)
    assert np.array_equal(other.stem.w.array, w.transpose(0, 2, 3, 1).astype(np.float16))
    assert np.array_equal(other.head.w.array, network.head.w.array.astype(np.float16))


def test_auxiliary_losses_count_with_their_weight_and_in_training_alone():
    geometry, size = THIN["googlenet-aux"]
    x, t = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype("f4"), np.zeros(2, "i4")
    with small_session("fp32", geometry=geometry, image_size=size) as session:
        model = session.step.model
        logits = model._body(model, x)
        assert len(logits) == 3

        def cross_entropy(logits):
            values = logits.array.astype(np.float64)
            return float(np.mean(np.log(np.exp(values).sum(1)) - values[:, 0]))

        main, *sides = map(cross_entropy, logits)
        assert float(model.loss(x, t).array) == pytest.approx(main + 0.3 * sum(sides), rel=1e-5)
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            assert len(model._body(model, x)) == 1
    assert isinstance(MODELS["googlenet"], GoogLeNet)
    assert not MODELS["googlenet"].auxiliary
