"""PyTorch's training against ours, from the same weights on the same batches; then every rung of PyTorch's against the
config without it.

In float32 this is asked of a small ResNet-50. The whole one is chaotic before it has learned anything: rounding alone
moves its first gradient by 2% and, from there, its losses; so it is compared in float64, where nothing hides.
"""

import functools
import shutil

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")

from torch_training import train_torch
from training import SMOOTH, Trained, change_distance, loss_distance, train

from tcbench.engine.backends import backend
from tcbench.engine.models.resnet import RESNET50

RUNGS = backend("torch").RUNGS
SEEDS = range(4)
SMALL_MODEL = {"geometry": SMOOTH, "image_size": 32}
WHOLE_MODEL = {"geometry": RESNET50, "image_size": 64}

PAIRS = [
    ("fp32", "fp32+nhwc"),
    ("fp32", "fp32+foreach"),
    ("fp32", "fp32+fused_optimizer"),
    ("bf16", "bf16+nhwc"),
    ("fp16", "fp16+fused_optimizer"),
]
ON_A_GPU = {"tf32", "cudnn_benchmark", "cuda_graph"}


@functools.cache
def trained(config: str, seed: int) -> Trained:
    return train_torch(config, 5, seed, **SMALL_MODEL)


# ------------------------------------------------------------------------------------------- against our own backend


@pytest.mark.parametrize("variant", ["v1", "v1.5"])
@pytest.mark.parametrize("seed", SEEDS)
def test_five_losses_are_ours(seed, variant):
    chainers = train("fp32", 5, seed, variant=variant, **SMALL_MODEL)
    torchs = train_torch("fp32", 5, seed, variant=variant, **SMALL_MODEL)
    assert loss_distance(torchs, chainers) < 1e-4
    assert np.ptp(chainers.losses) > 0.1  # they are not all the same loss


@pytest.mark.parametrize("variant", ["v1", "v1.5"])
def test_the_whole_resnet50_is_ours_in_float64(variant):
    """Forward, backward, update, running statistics: two steps show all of them."""
    chainers = train("fp64", 2, variant=variant, **WHOLE_MODEL)
    torchs = train_torch("fp64", 2, variant=variant, **WHOLE_MODEL)
    assert loss_distance(torchs, chainers) < 1e-8
    assert sum(w.size for w in torchs.after.values()) == RESNET50.parameters(10)
    assert sorted(np.linalg.norm(v) for v in chainers.running.values()) == pytest.approx(
        sorted(np.linalg.norm(v) for v in torchs.running.values()), rel=1e-6
    )


def test_fp16_trains_as_our_fp16_does():
    chainers, torchs = train("fp16", 5, **SMALL_MODEL), trained("fp16", 0)
    assert loss_distance(torchs, chainers) < 1e-2


# --------------------------------------------------------------------------------------------------- rung by rung


def within(first: Trained, second: Trained, config: str, rung: str) -> None:
    parity = RUNGS[rung].parity
    tolerance = parity.tolerance({"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[config.split("+")[0]])
    assert tolerance is not None
    assert loss_distance(first, second) <= tolerance.loss
    assert change_distance(first, second) <= tolerance.update


@pytest.mark.parametrize(("base", "config"), PAIRS)
def test_a_rung_is_within_its_declared_parity(base, config):
    for seed in SEEDS:
        within(trained(config, seed), trained(base, seed), config, config.split("+")[-1])


@pytest.mark.parametrize("config", ["fp16", "bf16"])
def test_a_16_bit_dtype_is_within_its_declared_parity_of_fp32(config):
    for seed in SEEDS:
        within(trained(config, seed), trained("fp32", seed), config, config)
        assert not np.array_equal(trained(config, seed).losses, trained("fp32", seed).losses)


@pytest.mark.filterwarnings("default:.*script_method:DeprecationWarning")  # PyTorch's own, of its own
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs g++: apt-get install g++")
def test_compiled_is_within_its_declared_parity():
    within(trained("fp32+compile", 0), trained("fp32", 0), "fp32", "compile")


def test_every_rung_that_changes_the_arithmetic_is_paired_here():
    paired = {config.split("+")[-1] for _, config in PAIRS} | {"fp32", "fp16", "bf16", "compile"}
    feeds = {name for name, rung in RUNGS.rungs.items() if rung.parity.kind == "input"}
    assert paired | feeds | ON_A_GPU == set(RUNGS.rungs)
