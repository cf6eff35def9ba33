"""Many ranks train as one process does that takes their batches one after another and averages the gradients."""

import functools

import numpy as np
import pytest
import rank_chainer
import ranks

pytestmark = ranks.needs_mpi

FLAT = "+batched+flat_allreduce"
WITHIN = 1e-6
"""Relative distance of each loss, and in the L2 norm of what training did to the parameters, from the reference's,
which averages in the same dtype."""
LATE = f"fp16{FLAT}+fp16_allreduce+double_buffering"
CONFIGS = [
    *("fp32", "fp32+static_graph", f"fp32{FLAT}", f"fp32{FLAT}+fp16_allreduce"),
    *(f"fp32{FLAT}+double_buffering", f"fp32{FLAT}+overlap"),
    *("fp16", LATE, f"fp16+nhwc+fused{FLAT}+fp16_allreduce+overlap", f"fp16{FLAT}+dynamic_scale"),
    *("bf16", f"bf16{FLAT}+static_graph+fp16_allreduce", "fp64+kfac"),
]

FAULTS = [(f"fp32+batched{rungs}", fault) for rungs in ("", "+flat_allreduce") for fault in ("missing", "other", "sum")]
CURVATURE = [("fp64+kfac", "factors"), ("fp64+kfac", "gather")]
JOBS = {config: {"config": config} for config in CONFIGS}
JOBS[LATE]["steps"] = 10  # gradients that are read in a wrong dtype are only seen from the seventh step on
JOBS |= {f"{config}:{fault}": {"config": config, "fault": fault} for config, fault in [*FAULTS, *CURVATURE]}
USUAL = {"fp32", f"fp32{FLAT}", f"fp32{FLAT}+overlap", LATE}
USUAL |= {"fp64+kfac", *(f"{config}:{fault}" for config, fault in CURVATURE)}
USUAL |= {"fp32+batched:other", "fp32+batched+flat_allreduce:sum"}
"""Trained by every run of the tests; the others by those that are slow."""


class Trained:
    """The ranks of each job, trained with the others of its group when one is first asked for."""

    def __init__(self, folder):
        self._folder = folder
        self._groups = {}

    def __getitem__(self, job):
        usual = job in USUAL
        if usual not in self._groups:
            jobs = {name: words for name, words in JOBS.items() if (name in USUAL) == usual}
            folder = self._folder / ("usual" if usual else "slow")
            folder.mkdir()
            self._groups[usual] = ranks.trained("rank_chainer", folder, jobs)
        return self._groups[usual][job]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("ranks"))


def marked(job: str, *values: str):
    return pytest.param(*(values or (job,)), marks=[] if job in USUAL else [pytest.mark.slow])


def reference(config: str):
    dtype, *rungs = config.split("+")
    about_ranks = {"flat_allreduce", "fp16_allreduce", "overlap", "double_buffering"}
    alone = "+".join([dtype, *(name for name in rungs if name not in about_ranks)])
    sent = None
    if "flat_allreduce" in rungs:
        half = "bfloat16" if dtype == "bf16" else "float16"
        sent = half if "fp16_allreduce" in rungs else "float32"
    return reference_of(alone, sent, int("double_buffering" in rungs), JOBS.get(config, {}).get("steps", ranks.STEPS))


@functools.cache
def reference_of(config: str, sent: str | None, late: int, steps: int):
    return rank_chainer.reference(config, steps, ranks.SIZE, sent, late)


@pytest.mark.slow
@pytest.mark.parametrize("config", [marked(config) for config in CONFIGS])
def test_ranks_equal_one_process_that_averages_their_gradients(trained, config):
    losses, before, after = reference(config)
    for rank, expected in zip(trained[config], losses, strict=True):
        assert rank.losses == pytest.approx(expected, rel=WITHIN)
    assert ranks.distance(trained[config][0].parameters, after, before) < WITHIN


@pytest.mark.long
@pytest.mark.parametrize("config", [marked(config) for config in CONFIGS])
def test_parameters_are_equal_across_ranks_bit_for_bit(trained, config):
    first, *remaining = (rank.parameters for rank in trained[config])
    for other in remaining:
        assert first.keys() == other.keys()
        assert all(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.long
@pytest.mark.parametrize("config", [marked(config) for config in CONFIGS])
def test_the_all_reduce_is_a_phase_between_backward_and_update(trained, config):
    engine = "MPI_Allreduce, Open MPI v" if "flat_allreduce" in config else "ChainerMN naive over Open MPI v"
    for rank in trained[config]:
        divided = ["factors", "inverse", "precondition"] if "kfac" in config else []
        assert rank.facts["phases"] == ["io", "forward", "backward", "allreduce", *divided, "update"]
        assert rank.facts["engine"].startswith(engine)
        assert rank.facts["overlaps"] == any(rung in config.split("+") for rung in ("overlap", "double_buffering"))


REDUCED = ["fp32", "fp16", f"fp32{FLAT}", f"fp32{FLAT}+overlap", f"fp32{FLAT}+fp16_allreduce"]


@pytest.mark.parametrize("config", [marked(config) for config in REDUCED])
def test_what_is_reduced_is_32_bits_of_every_gradient_or_16(trained, config):
    rank = trained[config][0]
    values = sum(array.size for array in rank.parameters.values())
    between = 64 * len(rank.parameters) if "flat" in config else 0
    item_bytes = 2 if "fp16_allreduce" in config else 4
    assert item_bytes * values <= rank.facts["reduced_bytes"] <= item_bytes * (values + between)


@pytest.mark.parametrize(("config", "fault"), [marked(f"{config}:{fault}", config, fault) for config, fault in FAULTS])
def test_a_missing_or_wrong_all_reduce_is_caught(trained, config, fault):
    """The session notices ranks that drift apart; only the reference notices ranks that are all wrong in the same way.

    (A buffer that nothing was packed into is 0 on all ranks.)"""
    drift_apart = fault == "other" or (fault == "missing" and "flat" not in config)
    for rank in trained[f"{config}:{fault}"]:
        if drift_apart:
            assert rank.facts["error"].startswith("parameters of rank 1 differ from those of rank 0")
            continue
        assert not rank.facts["error"]
        _, before, after = reference(config)
        assert ranks.distance(rank.parameters, after, before) > 0.5


@pytest.mark.parametrize(
    ("config", "fault"), [marked(f"{config}:{fault}", config, fault) for config, fault in CURVATURE]
)
def test_curvature_that_is_not_shared_is_caught(trained, config, fault):
    """Factors of one batch alone give every rank the same wrong step; a gradient that is not fetched lets them drift
    apart."""
    _, before, after = reference(config)
    for rank in trained[f"{config}:{fault}"]:
        if fault == "gather":
            assert rank.facts["error"].startswith("parameters of rank 1 differ from those of rank 0")
        else:
            assert ranks.distance(rank.parameters, after, before) > 0.01
