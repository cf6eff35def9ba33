"""Every rung against the config without it: same weights, same batches, five steps of a small ResNet-50.

Two questions: is it within its declared parity, and is its error against a float64 run at most twice that of the
config without it? Where rounding moves a value across ReLU's kink a whole gradient appears or vanishes, and that run's
error jumps by a factor of 100 or more, with the rung or without it. So the second is asked of the runs that no kink has
touched; and beside it a third: does the rung make kinks touch more runs?
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from training import Trained, change_distance, loss_distance, train

from tcbench.core.record import TrainSettings
from tcbench.engine.accelerators.cpu.onednn import accelerator, batch_norm
from tcbench.engine.backends import backend
from tcbench.engine.rung import storage_of

RUNGS = backend("chainer").RUNGS
SETTINGS = TrainSettings(learning_rate=0.01)
STEPS = 5
SEEDS = range(12)
"""Quantiles of errors need so many."""
FEW = SEEDS[:1]

DTYPES = [("fp32", "fp16"), ("fp32", "bf16")]
PAIRS = [
    ("fp32", "fp32+batched"),
    ("fp32", "fp32+nhwc"),
    ("fp32", "fp32+fused"),
    ("fp32", "fp32+im2col"),
    ("fp32+nhwc", "fp32+nhwc+im2col"),
    ("fp32+batched", "fp32+batched+static_graph"),
    ("fp16", "fp16+batched"),
    ("fp16", "fp16+nhwc"),
    ("fp16+nhwc", "fp16+nhwc+fused"),
    ("fp16+batched", "fp16+batched+static_graph"),
    ("fp16+batched", "fp16+batched+dynamic_scale"),
    ("fp16+nhwc+fused", "fp16+nhwc+fused+convstats"),
]
"""Each rung with each dtype and layout that its arithmetic asks for; bfloat16 is numerics/test_distances.py's, K-FAC
test_kfac.py's."""
MORE = [
    ("fp64+kfac", "fp32+kfac"),
    ("fp32+kfac", "fp32+kfac+batched"),
    ("fp32+nhwc", "fp32+nhwc+fused"),
    ("fp16", "fp16+fused"),
    ("fp16", "fp16+im2col"),
    ("fp16+nhwc+fused", "fp16+nhwc+fused+im2col"),
    ("bf16", "bf16+batched"),
    ("bf16", "bf16+nhwc"),
    ("bf16", "bf16+fused"),
    ("bf16+nhwc", "bf16+nhwc+fused"),
    ("bf16+batched", "bf16+batched+static_graph"),
]
ON_A_GPU = {"tf32", "cuda_graph"}
"""Rungs that the host does not have: see cuda/test_device_path.py and the GPU tests."""

ABOUT_RANKS = {"flat_allreduce", "fp16_allreduce", "double_buffering", "overlap"}
"""Rungs that do nothing on one rank: see test_ranks.py."""


@pytest.fixture(scope="module", autouse=True)
def one_library():
    """A batch normalisation that NumPy does faster in one layout would be held against oneDNN's in the other: NumPy's
    sums in float64. Here oneDNN does both, so that only the rung differs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_norm, "_faster", lambda engine, work, choice: choice)
        accelerator._engine.cache_clear()
        yield
    accelerator._engine.cache_clear()


@functools.cache
def trained(config: str, seed: int) -> Trained:
    return train(config, STEPS, seed, train=SETTINGS)


@dataclass(frozen=True)
class Errors:
    """Relative errors of one config against float64, of every step's loss and of what training did to the parameters:
    one per seed."""

    losses: np.ndarray
    updates: np.ndarray

    @property
    def touched(self) -> np.ndarray:
        """Whether a kink touched the run of each seed: its error is more than ten times that of the best one."""
        return self.updates > 10 * self.updates.min()

    @property
    def typical(self) -> dict[str, float]:
        """Medians: of the losses of all runs, of the updates of those that no kink has touched."""
        # Below half a unit in the last place of a float32 loss there is nothing to compare.
        return {
            "loss": max(6e-8, float(np.median(self.losses))),
            "update": float(np.median(self.updates[~self.touched])),
        }


@functools.cache
def errors(config: str) -> Errors:
    runs = [(trained(config, seed), trained("fp64", seed)) for seed in SEEDS]
    losses = np.concatenate([np.abs(run.losses - exact.losses) / exact.losses for run, exact in runs])
    return Errors(losses, np.array([change_distance(*run) for run in runs]))


def p_of_more_kinks(without: Errors, with_rung: Errors) -> float:
    """Return the p-value of an exact McNemar test that the rung makes kinks more frequent.

    It is a one-sided sign test over the seeds at which a kink touches only one of the two runs."""
    more = int(np.sum(with_rung.touched & ~without.touched))
    fewer = int(np.sum(~with_rung.touched & without.touched))
    return sum(math.comb(more + fewer, k) for k in range(more, more + fewer + 1)) / 2 ** (more + fewer)


KINKS_BY_CHANCE = 0.002
"""Nine seeds of twelve at which a kink touches the rung's runs alone (2^-9). Where half of the runs are touched by
chance, that comes to one false alarm in 500 runs of all pairs."""


def added_rung(base: str, config: str):
    return RUNGS[config.split("+")[-1]]


@pytest.mark.parametrize(
    ("base", "config"), [*DTYPES, *PAIRS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in MORE)]
)
def test_a_rung_is_within_its_declared_parity(base, config):
    parity = added_rung(base, config).parity
    for seed in FEW:
        with_rung, without = trained(config, seed), trained(base, seed)
        if parity.kind == "exact":
            assert np.array_equal(with_rung.losses, without.losses)
            assert np.array_equal(with_rung.change, without.change)
        else:
            tolerance = parity.tolerance(storage_of(RUNGS[name] for name in config.split("+")))
            assert loss_distance(with_rung, without) <= tolerance.loss
            assert change_distance(with_rung, without) <= tolerance.update


@pytest.mark.parametrize(("base", "config"), [*PAIRS, *MORE])
@pytest.mark.slow
def test_a_rungs_error_against_float64_is_at_most_twice_that_without_it(base, config):
    without, with_rung = errors(base), errors(config)
    was, now = without.typical, with_rung.typical
    touched = f"kinks {without.touched.sum()} -> {with_rung.touched.sum()} of {len(SEEDS)}"
    print(f"\n{config:34} " + "  ".join(f"{k} {now[k]:.1e} ({now[k] / was[k]:.2f}x)" for k in was) + "  " + touched)
    for name in was:
        assert now[name] <= 2 * was[name], name
    assert p_of_more_kinks(without, with_rung) > KINKS_BY_CHANCE


def test_the_training_these_tests_watch_moves_the_weights():
    run = trained("fp64", 0)
    assert np.linalg.norm(run.change) > 0.1
    assert np.ptp(run.losses) > 0.1


def test_every_rung_that_changes_the_arithmetic_is_paired_here():
    paired = {added_rung(base, config).name for base, config in PAIRS + MORE} | {"fp32", "fp16", "bf16"}
    feeds = {name for name, rung in RUNGS.rungs.items() if rung.parity.kind == "input"}
    assert paired | feeds | ON_A_GPU | ABOUT_RANKS == set(RUNGS.rungs)
