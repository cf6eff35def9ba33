"""A small training on oneDNN is the same training on NumPy, as near as rungs that only round otherwise declare."""

import numpy as np
import pytest
from training import Trained, change_distance, loss_distance, numpys_processor, train

from tcbench.engine.backends import backend
from tcbench.engine.rung import ROUNDING, storage_of

pytestmark = pytest.mark.long

RUNGS = backend("chainer").RUNGS
THREADS = 2
"""So that batches are cut into slices."""


def trained(config: str, **site: object) -> Trained:
    return train(config, 4, threads=THREADS, **site)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", ["fp32", "fp16", "fp32+batched+nhwc+fused", "bf16+batched+nhwc+fused"])
def test_a_training_is_numpys(config: str) -> None:
    by_onednn, by_numpy = trained(config), trained(config, site=numpys_processor(THREADS))
    assert not np.array_equal(by_onednn.change, by_numpy.change), "one implementation, compared with itself"
    tolerance = ROUNDING.tolerance(storage_of(RUNGS[name] for name in config.split("+")))
    assert tolerance is not None
    assert loss_distance(by_onednn, by_numpy) <= tolerance.loss
    assert change_distance(by_onednn, by_numpy) <= tolerance.update
