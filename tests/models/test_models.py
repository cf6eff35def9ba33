"""A model is one file: its blocks, from which parameters, arithmetic, layers and every backend's network follow."""

from __future__ import annotations

import importlib
import math

import pytest
from training import run_step, small_session

from tcbench import models

RESNET18 = """
from collections.abc import Iterator
from dataclasses import dataclass

from tcbench.models.residual import Block, Conv, ResidualNetwork


@dataclass(frozen=True)
class ResNet18(ResidualNetwork):
    stages: int = 4

    def blocks(self, variant: str) -> Iterator[Block]:
        self.check(variant)
        channels = self.stem.out_channels
        for stage in range(self.stages):
            for index in range(2):
                width, stride = 64 << stage, 2 if stage and not index else 1
                shortcut = Conv(channels, width, 1, stride, relu=False) if stride > 1 else None
                yield Block((Conv(channels, width, 3, stride), Conv(width, width, 3, 1)), shortcut)
                channels = width


MODEL = ResNet18("resnet18", ("v1",), Conv(3, 64, 7, 2), 512)
"""


@pytest.fixture
def resnet18(tmp_path, monkeypatch):
    (tmp_path / "dropped_in_resnet18.py").write_text(RESNET18)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    monkeypatch.setattr(models, "MODELS", models._all())
    importlib.invalidate_caches()
    return models.MODELS["resnet18"]


def test_a_model_that_is_dropped_in_is_found_and_counted(resnet18):
    """The figures are those of K. He et al., table 1, and of torchvision's model of this name."""
    assert resnet18.parameters(1000) == 11_689_512
    assert resnet18.macs("v1", 224, 1000) == pytest.approx(1.8e9, rel=0.02)
    convs = [layer for layer in resnet18.layers("v1", 224, 1000) if layer.kind == "conv"]
    assert len(convs) == 1 + 16 + 3
    assert sum(layer.add for layer in convs) == 8
    assert models.described("resnet18", "v1", 224) is resnet18
    with pytest.raises(ValueError, match="unknown variant 'v2', expected one of v1"):
        list(resnet18.blocks("v2"))


@pytest.mark.parametrize("config", ["fp32", "fp16+batched+nhwc+fused"])
def test_a_model_that_is_dropped_in_trains_with_every_rung(resnet18, config):
    two_stages = type(resnet18)("two stages", ("v1",), resnet18.stem, 128, stages=2)
    with small_session(config, geometry=two_stages, image_size=32) as session:
        assert math.isfinite(run_step(session))
