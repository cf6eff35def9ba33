"""Many ranks train as one process does that takes their batches one after another and averages the gradients."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import rank_chainer
import ranks

pytestmark = ranks.needs_mpi

CONFIGS = {"fp32": 1e-6, "fp16": 1e-2, "bf16": 1e-2}
"""With the distance that what training did to the parameters may have from the reference's, relative, L2."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    jobs = {config: {"config": config} for config in CONFIGS}
    return ranks.trained("rank_chainer", tmp_path_factory.mktemp("ranks"), jobs)


@functools.cache
def reference(config: str):
    return rank_chainer.reference(config, ranks.STEPS, ranks.SIZE)


@pytest.mark.parametrize("config", CONFIGS)
def test_ranks_equal_one_process_that_averages_their_gradients(trained, config):
    losses, before, after = reference(config)
    for rank, expected in zip(trained[config], losses, strict=True):
        assert rank.losses == pytest.approx(expected, rel=CONFIGS[config])
    assert ranks.distance(trained[config][0].parameters, after, before) < CONFIGS[config]


@pytest.mark.parametrize("config", CONFIGS)
def test_parameters_are_equal_across_ranks_bit_for_bit(trained, config):
    one, *others = (rank.parameters for rank in trained[config])
    for other in others:
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_all_reduce_is_a_phase_between_backward_and_update(trained, config):
    for rank in trained[config]:
        assert rank.facts["phases"] == ["io", "forward", "backward", "allreduce", "update"]
        assert rank.facts["engine"].startswith("ChainerMN naive over Open MPI v")
        assert rank.facts["reduced_bytes"] == 4 * sum(array.size for array in rank.parameters.values())
