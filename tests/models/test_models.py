"""A model is data: from its layers follow parameters, arithmetic and every backend's network."""

from __future__ import annotations

import importlib
import math

import pytest
from training import run_step, small_session

from tcbench import models
from tcbench.models import MODELS
from tcbench.models.geometry import Layer
from tcbench.models.resnet import ResNet

PUBLISHED = {
    "resnet18": (11_689_512, 1.81),
    "resnet34": (21_797_672, 3.66),
    "resnet50": (25_557_032, 3.86),
    "resnet101": (44_549_160, 7.57),
    "resnet152": (60_192_808, 11.28),
}
"""Parameters for 1000 classes, and 1e9 MACs at 224x224: torchvision's models (but for variant v1's MACs, which are K.
He et al.'s "FLOPs", 1.8, 3.6, 3.8, 7.6 and 11.3)."""


def test_every_model_has_its_published_numbers():
    counted = {
        name: (model.parameters(1000), round(model.macs(model.variants[0], 224, 1000) / 1e9, 2))
        for name, model in MODELS.items()
    }
    assert counted == PUBLISHED


def layer_macs(layer: Layer) -> int:
    return layer.in_channels * layer.out_channels * (layer.ksize * layer.out_size) ** 2


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("image_size", [224, 64])
def test_macs_are_those_of_all_layers_one_by_one(name, image_size):
    model = MODELS[name]
    for variant in model.variants:
        layers = [one for one in model.layers(variant, image_size, 1000) if one.kind in ("conv", "fc")]
        assert sum(map(layer_macs, layers)) == model.macs(variant, image_size, 1000)


@pytest.mark.parametrize(("name", "convs", "additions"), [("resnet18", 20, 8), ("resnet34", 36, 16)])
def test_a_basic_block_has_two_convolutions(name, convs, additions):
    layers = [one for one in MODELS[name].layers("v1", 224, 1000) if one.kind == "conv"]
    assert (len(layers), sum(one.add for one in layers)) == (convs, additions)


def test_a_model_that_is_dropped_in_is_known(tmp_path, monkeypatch):
    (tmp_path / "dropped_in.py").write_text(
        "from tcbench.models.resnet import ResNet\nMODELS = (ResNet('thin', blocks_per_stage=(1, 1)),)\n"
    )
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    assert set(models._all()) == {*MODELS, "thin"}


def test_a_variant_that_a_model_has_not_is_its_first():
    assert models.variant_of("resnet50", "v1.5") == "v1.5"
    assert models.variant_of("resnet18", "v1.5") == "v1"
    with pytest.raises(ValueError, match=r"unknown variant 'v1.5', expected one of v1"):
        list(MODELS["resnet18"].blocks("v1.5"))


BASIC = ResNet("two stages of basic blocks", blocks_per_stage=(1, 1), bottleneck=False)


@pytest.mark.parametrize("config", ["fp32", "fp16+batched+nhwc+fused"])
def test_basic_blocks_train_with_every_rung(config):
    with small_session(config, geometry=BASIC, image_size=32) as session:
        assert math.isfinite(run_step(session))
