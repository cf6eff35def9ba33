"""A model is data: from its stages follow parameters, arithmetic, layers and every backend's network."""

import importlib

import pytest

from tcbench.engine import models
from tcbench.engine.models import MODELS
from tcbench.engine.models.resnet import RESNET50

PUBLISHED = {
    "alexnet": (61_100_840, 0.71),
    "googlenet": (6_998_552, 1.58),
    "googlenet-aux": (13_378_280, 1.59),
    "resnet18": (11_689_512, 1.81),
    "resnet34": (21_797_672, 3.66),
    "resnet50": (25_557_032, 3.86),
    "resnet101": (44_549_160, 7.57),
    "resnet152": (60_192_808, 11.28),
    "vgg16": (138_357_544, 15.47),
}
"""Parameters for 1000 classes, and 1e9 MACs at 224x224. Those of ResNet, AlexNet and VGG are torchvision's of the same
names (MACs of variant v1 are K. He et al.'s: 1.8, 3.6, 3.8, 7.6 and 11.3), of GoogLeNet Caffe's bvlc_googlenet."""


def test_every_model_has_its_published_numbers():
    counted = {
        name: (model.parameters(1000), round(model.macs(model.variants[0], 224, 1000) / 1e9, 2))
        for name, model in MODELS.items()
    }
    assert counted == PUBLISHED


@pytest.mark.parametrize(("variant", "strides", "gmacs"), [("v1", (2, 1, 1), 3.86), ("v1.5", (1, 2, 1), 4.09)])
def test_resnet50s_variants_differ_in_where_the_stride_sits(variant, strides, gmacs):
    blocks = [tuple(conv.stride for conv in block.convs) for block in RESNET50.blocks(variant)]
    assert (len(blocks), [block for block in blocks if 2 in block]) == (16, [strides] * 3)
    assert RESNET50.macs(variant, 224, 1000) / 1e9 == pytest.approx(gmacs, abs=0.005)


def test_googlenets_maps_are_those_of_its_table():
    """C. Szegedy et al., table 1: "output size" of the inception modules."""
    maps = {layer.name: (layer.out_size, layer.out_channels) for layer in MODELS["googlenet"].layers("v1", 224, 1000)}
    stages = {"pool1": (56, 64), "pool2": (28, 192), "3a": (28, 256), "3b": (28, 480)}
    stages |= {"4a": (14, 512), "4d": (14, 528), "4e": (14, 832), "5b": (7, 1024)}
    assert {name: maps[name] for name in stages} == stages


@pytest.mark.parametrize(("name", "convs", "additions"), [("resnet18", 20, 8), ("resnet34", 36, 16)])
def test_a_basic_block_has_two_convolutions(name, convs, additions):
    layers = [layer for layer in MODELS[name].layers("v1", 224, 1000) if layer.kind == "conv"]
    assert (len(layers), sum(layer.add for layer in layers)) == (convs, additions)


@pytest.mark.parametrize("name", MODELS)
def test_the_least_image_leaves_no_empty_map(name):
    model = MODELS[name]
    assert all(layer.out_size >= 1 for layer in model.layers("v1", model.min_image_size, 10))
    if name == "alexnet":
        assert any(layer.out_size < 1 for layer in model.layers("v1", model.min_image_size - 1, 10))


def test_a_model_that_is_dropped_in_is_known(tmp_path, monkeypatch):
    (tmp_path / "dropped_in.py").write_text(
        "from tcbench.engine.models.resnet import ResNet\nMODELS = (ResNet('thin', blocks_per_stage=(1, 1)),)\n"
    )
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    assert set(models._all()) == {*MODELS, "thin"}
    (tmp_path / "again.py").write_text("from dropped_in import MODELS\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="several definitions have the name 'thin'"):
        models._all()


def test_a_variant_that_a_model_does_not_have_is_refused():
    for name in MODELS:
        with pytest.raises(ValueError, match="unknown variant 'v2', expected one of v1"):
            list(MODELS[name].stages("v2", 10))
