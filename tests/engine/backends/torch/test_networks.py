"""PyTorch builds every network as ours does: the same logits and gradients from the same weights and batches."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")

from networks import THIN
from torch_training import chainer_gradients, small_session, small_torch_session, torch_gradients

from tcbench.engine.models.geometry import Auxiliary, Dropout, Named, Network


@dataclass(frozen=True)
class KeepingAll(Network):
    """A network whose dropout drops nothing: PyTorch's masks are its own."""

    base: Network = field(default_factory=lambda: THIN["vgg16"][0])

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        for name, stage in self.base.stages(variant, n_classes):
            if isinstance(stage, Auxiliary):
                inner = tuple((n, Dropout(0.0) if isinstance(s, Dropout) else s) for n, s in stage.stages)
                yield name, Auxiliary(inner, stage.weight)
            else:
                yield name, Dropout(0.0) if isinstance(stage, Dropout) else stage


@pytest.mark.parametrize(
    ("model", "image_size"),
    # The last: where windows of GoogLeNet's auxiliary classifiers overlap.
    [*((model, 63) for model in THIN), pytest.param("googlenet-aux", 224, marks=pytest.mark.slow)],
)
def test_gradients_are_ours_in_float64(model, image_size):
    geometry = KeepingAll("keeping all", base=THIN[model][0])
    with small_session("fp64", geometry=geometry, image_size=image_size) as session:
        expected = chainer_gradients(session)
    with small_torch_session("fp64", geometry=geometry, image_size=image_size) as session:
        gradients = torch_gradients(session)
    assert {name: gradient.size for name, gradient in expected.items()} == {n: g.size for n, g in gradients.items()}
    for name, gradient in gradients.items():
        distance = np.linalg.norm(expected[name].reshape(gradient.shape) - gradient)
        assert distance <= 1e-9 * np.linalg.norm(gradient), name
