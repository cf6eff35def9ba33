"""DistributedDataParallel's ranks train as one process does that takes their batches one after another."""

import functools

import numpy as np
import pytest
import ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")

import rank_torch

pytestmark = ranks.needs_mpi

CONFIGS = {"fp32": 1e-5, "fp32+nhwc": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
"""Each config with the relative L2 distance allowed between its parameter changes and the reference's.

DDP averages in float32 for every config; the rest comes from the order of sums in PyTorch's threads."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return ranks.trained("rank_torch", tmp_path_factory.mktemp("ranks"), {name: {"config": name} for name in CONFIGS})


@functools.cache
def reference(config: str):
    return rank_torch.reference(config, ranks.STEPS, ranks.SIZE)


@pytest.mark.parametrize("config", CONFIGS)
def test_ranks_equal_one_process_that_averages_their_gradients(trained, config):
    losses, before, after = reference(config)
    for rank, expected in zip(trained[config], losses, strict=True):
        assert rank.losses == pytest.approx(expected, rel=CONFIGS[config])
    assert ranks.distance(trained[config][0].parameters, after, before) < CONFIGS[config]


@pytest.mark.parametrize("config", CONFIGS)
def test_parameters_are_equal_across_ranks_bit_for_bit(trained, config):
    first, *remaining = (rank.parameters for rank in trained[config])
    for other in remaining:
        assert all(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_wait_for_the_all_reduce_is_a_phase_between_backward_and_update(trained, config):
    for rank in trained[config]:
        assert rank.facts["phases"] == ["io", "forward", "backward", "allreduce", "update"]
        assert rank.facts["engine"] == "PyTorch DistributedDataParallel over gloo"
        assert rank.facts["overlaps"]
        assert rank.facts["reduced_bytes"] == 4 * sum(array.size for array in rank.parameters.values())
