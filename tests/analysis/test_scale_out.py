import dataclasses

import pytest

from tcbench.analysis.scale_out import (
    ALGORITHMS,
    BACKWARD,
    IMAGES_TO_TRAIN,
    PLATEAU,
    WIRE,
    RankStep,
    all_reduce_s,
    scaled,
    waits_s,
)
from tcbench.hardware import networks
from tcbench.hardware.networks import Link, RankNetwork

STEP = RankStep(time_s=0.18, images=32, gradient_bytes=100_000_000, power_w=250.0)
FLAT = networks.load("10,20")
NODES = RankNetwork("nodes", "4 ranks a node", 4, Link(100e9, 2e-6), Link(10e9, 20e-6))


def ring_traffic(n_ranks, n_bytes):
    """Bytes that one rank sends, and messages, when the ring is played through, chunk by chunk."""
    chunks = [[{rank} for _ in range(n_ranks)] for rank in range(n_ranks)]
    sent = messages = 0
    for phase in range(2):
        for turn in range(n_ranks - 1):
            moves = [(rank, (rank - turn + phase) % n_ranks) for rank in range(n_ranks)]
            arriving = [(rank, chunk, set(chunks[rank][chunk])) for rank, chunk in moves]
            for rank, chunk, values in arriving:
                chunks[(rank + 1) % n_ranks][chunk] |= values
            sent, messages = sent + n_bytes / n_ranks, messages + 1
    assert all(chunk == set(range(n_ranks)) for rank in chunks for chunk in rank)
    return sent, messages


@pytest.mark.parametrize("n_ranks", [2, 3, 8])
def test_a_ring_of_one_node_takes_as_long_as_its_messages_played_through(n_ranks):
    node = dataclasses.replace(NODES, ranks_per_node=8)
    sent, messages = ring_traffic(n_ranks, 1_000_000)
    expected_s = sent / 100e9 + messages * 2e-6
    assert all_reduce_s(1_000_000, n_ranks, node, "ring") == pytest.approx(expected_s)
    assert all_reduce_s(1_000_000, n_ranks, node, "hierarchical") == pytest.approx(expected_s)


def test_a_ring_over_nodes_is_as_fast_as_its_slowest_link_and_passes_few_of_them():
    sent, messages = ring_traffic(16, 1_000)
    expected_s = sent / (10e9 * WIRE) + 6 * 20e-6 + (messages - 6) * 2e-6  # 4 nodes: 3 links, there and back
    assert all_reduce_s(1_000, 16, NODES, "ring") == pytest.approx(expected_s)


def test_a_large_ring_over_nodes_pays_its_latency_almost_twice():
    small, large = 4096 * 16 - 1, 4096 * 16
    jump_s = all_reduce_s(large, 16, NODES, "ring") - all_reduce_s(small, 16, NODES, "ring")
    assert jump_s == pytest.approx((PLATEAU - 1) * (6 * 20e-6 + 24 * 2e-6), rel=1e-3)


def test_a_hierarchy_sends_a_node_s_bytes_once_and_halves_between_nodes():
    # 64 ranks, 16 nodes: 6 messages within, 2 x 4 between.
    n = 8_000_000
    expected_s = 2 * 3 / 4 * n / 100e9 + 6 * 2e-6 + 2 * 15 / 16 * n / (10e9 * WIRE) + 8 * 20e-6
    assert all_reduce_s(n, 64, NODES, "hierarchical") == pytest.approx(expected_s)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_rank_reduces_nothing_and_is_as_fast_as_it_was(algorithm):
    alone = scaled(STEP, 1, NODES, algorithm, overlap=0.5)
    assert (alone.all_reduce_s, alone.waits_s, alone.efficiency) == (0, 0, 1)
    assert alone.images_per_s == pytest.approx(32 / 0.18)


def test_nothing_hides_behind_more_than_the_backward_pass():
    assert waits_s(1.0, 0.3, overlap=1.0) == pytest.approx(1.0 - BACKWARD * 0.3)
    assert waits_s(1.0, 30.0, overlap=1.0) == 0
    assert waits_s(1.0, 30.0, overlap=0.25) == 0.75


def test_training_takes_the_images_over_the_rate_and_the_devices_power_over_that_time():
    here = scaled(STEP, 64, FLAT, "ring", 0.5)
    assert here.global_batch == 2048
    assert here.images_per_s == pytest.approx(here.efficiency * 64 * 32 / 0.18)
    assert here.time_to_train_s * here.images_per_s == pytest.approx(IMAGES_TO_TRAIN)
    assert here.energy_j == pytest.approx(64 * 250 * here.time_to_train_s)
    assert scaled(dataclasses.replace(STEP, power_w=None), 64, FLAT, "ring", 0.5).energy_j is None
