"""One process that takes the ranks' shards in turn, against ranks that are kept apart."""

import contextlib

import msgspec
import numpy as np
import pytest
from training import numpys_processor, on_numpy

from tcbench.commands.numerics import plan
from tcbench.core.numerics import RANKS_TECHNIQUES
from tcbench.engine.accelerators.device import host_device
from tcbench.engine.backends.chainer import sites
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.network import ChainerNetwork
from tcbench.engine.backends.chainer.optimizers import BatchedSGD, OptimizerSpec
from tcbench.engine.backends.chainer.parts import Parts
from tcbench.engine.backends.chainer.rungs import RUNGS
from tcbench.engine.backends.chainer.session import ChainerStep
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.spec import TensorSpec
from tcbench.engine.models.small import SMALL_RESNET
from tcbench.engine.numerics import training
from tcbench.engine.numerics.shards import RanksInTurn, StepsInTurn
from tcbench.run.scenario import load

RANKS, STEPS = 4, 5


def setting(**changes):
    request = plan.NumericsRequest(steps=STEPS, batch_size=4, image_size=8, ranks=RANKS)
    training = plan.training_setting(load("cpu"), host_device(), request, 1, None)
    return msgspec.structs.replace(training, **{"train_images": 64, "test_images": 32, **changes})


def job(technique, training=None):
    return next(j for j in plan.training_jobs(training or setting(), 1, 1.0) if j.technique.name == technique)


class Given(Feed):
    """A feed of batches that are there already."""

    def __init__(self, batches):
        self._batches = iter(batches)

    def next(self):
        return next(self._batches)


@pytest.fixture
def makes():
    """Makes a model with its optimizer, all with the same weights."""
    cell = job("ranks").cell
    with contextlib.ExitStack() as stack:
        site = numpys_processor()
        stack.enter_context(chainer.using_config("train", True))
        stack.enter_context(site.scope())
        parts = Parts(TensorSpec())
        for name in cell.rungs:
            stack.enter_context(RUNGS[name].scope(cell))
            parts = RUNGS[name].parts(parts, cell)

        def make():
            with sites.random_state(site, cell.seed) as rng:
                model = ChainerNetwork(parts, SMALL_RESNET.stages(cell.variant, cell.n_classes), rng)
            sites.move_model(site, model)
            return model, BatchedSGD(OptimizerSpec(0.01, 0.9, 1e-4, BatchedSGD), model)

        yield make


def batches():
    rng = np.random.default_rng(0)
    shape = (STEPS, RANKS * 4, 8, 8, 3)
    return list(zip(rng.standard_normal(shape, np.float32), rng.integers(0, 10, shape[:2], np.int32), strict=True))


def shard(batch, rank):
    return [(x[rank * 4 : rank * 4 + 4], t[rank * 4 : rank * 4 + 4]) for x, t in batch]


def run(step):
    for phase in step.phases():
        phase.run()
    return float(step.loss_value)


def state(model):
    arrays = {name: np.array(p.array) for name, p in model.namedparams()}
    for name, link in model.namedlinks():
        if getattr(link, "running", None) is not None:
            arrays |= {f"{name}/mean": np.array(link.running.mean), f"{name}/var": np.array(link.running.var)}
    return arrays


def ranks_apart(makes, global_batches):
    """Every rank with a model, an optimizer and a feed of its own; gradients are averaged in float64 between them."""
    ranks = [ChainerStep(*makes(), Given(shard(global_batches, rank))) for rank in range(RANKS)]
    losses = []
    for _ in range(STEPS):
        for step in ranks:
            step.io(), step.forward(), step.backward()
        for parameters in zip(*(step.model.params() for step in ranks), strict=True):
            mean = np.mean([p.grad.astype(np.float64) for p in parameters], axis=0).astype(np.float32)
            for parameter in parameters:
                parameter.grad = mean.copy()
        for step in ranks:
            step.update()
        losses.append(float(np.mean([step.loss_value for step in ranks])))
    return losses, state(ranks[0].model)


def farthest(values, expected):
    return max(
        float(np.abs(values[name] - expected[name]).max() / (np.abs(expected[name]).max() + 1e-6)) for name in expected
    )


def test_ranks_in_turn_train_as_ranks_that_are_kept_apart(makes):
    global_batches = batches()
    model, optimizer = makes()
    step = RanksInTurn(model, optimizer, Given(global_batches), shards=RANKS)
    losses = [run(step) for _ in range(STEPS)]
    expected_losses, expected_state = ranks_apart(makes, global_batches)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    # Parameters, and the first rank's running statistics.
    assert farthest(state(model), expected_state) < 1e-3


def test_steps_in_turn_are_steps_at_the_batch_size_of_one(makes):
    global_batches = batches()
    model, optimizer = makes()
    step = StepsInTurn(model, optimizer, Given(global_batches), shards=RANKS)
    for _ in range(STEPS):
        run(step)
    alone, its_optimizer = makes()
    rank_step = ChainerStep(
        alone, its_optimizer, Given([shard([batch], rank)[0] for batch in global_batches for rank in range(RANKS)])
    )
    for _ in range(STEPS * RANKS):
        run(rank_step)
    assert farthest(state(model), state(alone)) == 0


@pytest.mark.parametrize(
    ("name", "site"), [("one-rank", numpys_processor), ("ranks", on_numpy), ("own-batch", on_numpy)]
)
def test_every_kind_of_batch_trains_on_the_host_or_on_a_gpus_path(name, site):
    trained = training.train(job(name), site())
    assert len(trained.losses) == STEPS
    assert np.isfinite(trained.test_loss)


def test_techniques_differ_in_their_warm_up_and_in_whose_rate_they_have():
    training = setting(steps=90, learning_rate=0.1)
    rates = {t.name: [training.learning_rate_at(step, t.rate) for step in (0, 5)] for t in RANKS_TECHNIQUES.values()}
    warmed_up, of_all_ranks, of_one = (pytest.approx(ends) for ends in ([0.1, 0.4], [0.4, 0.4], [0.1, 0.1]))
    names = dict.fromkeys(("one-rank", "ranks"), warmed_up) | dict.fromkeys(("unscaled", "own-batch"), of_one)
    assert rates == names | {"no-warm-up": of_all_ranks}


def test_rates_follow_goyal():
    training = setting(steps=90, learning_rate=0.1)
    rates = {
        rate: [training.learning_rate_at(step, rate) for step in range(90)] for rate in ("own", "scaled", "warm-up")
    }
    assert rates["own"][0] == 0.1
    assert rates["scaled"][0] == pytest.approx(0.4)
    # Five of ninety: from one rank's rate, linearly.
    assert rates["warm-up"][:6] == pytest.approx([0.1, 0.16, 0.22, 0.28, 0.34, 0.4])
    for place, power in ((29, 0), (30, 1), (59, 1), (60, 2), (79, 2), (80, 3), (89, 3)):
        assert rates["warm-up"][place] == rates["scaled"][place] == pytest.approx(0.4 * 0.1**power)
        assert rates["own"][place] == pytest.approx(0.1 * 0.1**power)
    assert training.learning_rate_at(80, "constant") == 0.1


def test_the_batch_is_that_of_all_ranks_and_the_base_one_rank():
    assert setting(ranks=1).base.name == "fp32"
    assert setting().base.name == "one-rank"
    assert setting().batch_size == setting().global_batch == 16
    assert setting().loss_divisor == 1
