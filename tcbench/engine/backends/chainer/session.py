"""The training session of the Chainer backend."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import threadpoolctl

from tcbench.core.record import Cell
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.backends.chainer import sites
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.exchange import ExchangeSpec, PerParameter, Replica
from tcbench.engine.backends.chainer.layers import LayerHooks
from tcbench.engine.backends.chainer.network import ChainerNetwork
from tcbench.engine.backends.chainer.optimizers import OptimizerSpec, PerParameterSGD
from tcbench.engine.backends.chainer.parts import Parts
from tcbench.engine.backends.chainer.pillow import ChainerFeed
from tcbench.engine.backends.chainer.rungs import RUNGS
from tcbench.engine.backends.session import BaseSession, BaseStep
from tcbench.engine.feeds.base import Feed, FeedRecipe
from tcbench.engine.feeds.modelled import WorkersFeed
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.engine.feeds.synthetic import make_synthetic_feed
from tcbench.engine.models.geometry import Network
from tcbench.engine.session import Facts, Layers


class ChainerStep(BaseStep):
    """A Chainer training step."""

    @functools.cached_property
    def _parameters(self) -> tuple[Any, ...]:
        return tuple(self.model.params())

    def forward(self) -> None:
        self.loss = self.model.loss(self.x, self.t)

    def backward(self) -> None:
        """Clear the old gradients, and compute new ones."""
        for parameter in self._parameters:
            parameter.cleargrad()
        self.optimizer.backward(self.loss)
        # Frees the graph, with every activation, before the next forward pass allocates memory.
        self.loss_value, self.loss = self.loss.array, None


class ChainerSession(BaseSession):
    """A training session in Chainer.

    `rungs`, `geometry` and `make_feed` replace the rungs, model and feed of the cell if they are given."""

    step: ChainerStep

    def __init__(
        self,
        cell: Cell,
        site: OpenDevice,
        *,
        rungs: Sequence[Any] | None = None,
        geometry: Network | None = None,
        make_feed: Callable[[FeedSpec], Feed] | None = None,
    ) -> None:
        self._make_feed = make_feed
        scopes = threadpoolctl.threadpool_limits(cell.threads), chainer.using_config("train", True)
        super().__init__(cell, site, rungs or [RUNGS[name] for name in cell.rungs], scopes, geometry)

    def build(self, stack: contextlib.ExitStack) -> ChainerStep:
        """Build feed, model, optimizer and, on many ranks, the exchange."""
        parts = self.fold("parts", Parts(TensorSpec()))
        feed = self.feed(parts.spec)  # first, because weights are drawn in a thread during its imports
        stack.callback(feed.close)
        with sites.random_state(self.site, self.cell.seed) as rng:
            model = ChainerNetwork(parts, self._stages, rng)
        sites.move_model(self.site, model)
        self.n_parameters = sum(int(p.size) for p in model.params())
        spec = self.optimizer_spec()
        replica = Replica(self._world, model, spec.build(spec, model), self.site.reducer)
        exchange = preconditioner = None
        if self._world.size > 1:
            plan = self.fold("exchange", ExchangeSpec(PerParameter))
            exchange = plan.build(plan, replica)
            stack.callback(exchange.close)
        if spec.precondition is not None:
            preconditioner = spec.precondition(replica)
            stack.callback(preconditioner.close)
        return self.step_of(model, replica.optimizer, feed, exchange, preconditioner)

    def optimizer_spec(self) -> OptimizerSpec:
        """Return the description of the optimizer, from the cell's settings and rungs."""
        train = self.cell.train
        spec = OptimizerSpec(train.learning_rate, train.momentum, train.weight_decay, build=PerParameterSGD)
        folded: OptimizerSpec = self.fold("optimizer", spec)
        return folded

    def feed(self, tensor: TensorSpec) -> Feed:
        """Return the feed of the cell's input, with batches on the site's device."""
        recipe = self.fold("feed", FeedRecipe(self.feed_spec(tensor), ChainerFeed, WorkersFeed))
        kinds = {"synthetic": make_synthetic_feed, "modelled": recipe.modelled}
        make_feed = self._make_feed or kinds.get(self.cell.input.kind)
        feed: Feed = (recipe if make_feed is None else recipe.with_source(make_feed)).make()
        return sites.deliver(self.site, feed)

    def step_of(self, *built: Any) -> ChainerStep:
        """Make the step from a model, an optimizer and the other parts. Subclasses may override this."""
        return ChainerStep(*built)

    def parameters(self) -> Iterable[Any]:
        return (self.site.accelerator.download(p.array) for p in self.step.model.params())

    def loss(self) -> float | None:
        return None if self.step.loss_value is None else self.site.value(self.step.loss_value)

    def facts(self) -> Facts:
        return dataclasses.replace(super().facts(), plans=self.site.plans(), busy_s=self.site.busy_s())

    def detail(self, layers: Layers) -> contextlib.AbstractContextManager[None]:
        return LayerHooks(self.step.model, layers)
