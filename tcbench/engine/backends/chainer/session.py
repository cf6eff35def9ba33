"""A Chainer training step as a Session: rungs folded over parts, then built, then run phase by phase."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import threadpoolctl

from tcbench.core.record import Cell
from tcbench.core.session import Clock, Facts, Layers, Phase
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.exchange import PerParameter
from tcbench.engine.backends.chainer.layers import LayerHooks
from tcbench.engine.backends.chainer.network import Network
from tcbench.engine.backends.chainer.optimizers import PerParameterSGD
from tcbench.engine.backends.chainer.parts import (
    Exchange,
    ExchangeSpec,
    Optimizer,
    OptimizerSpec,
    Parts,
    Preconditioner,
    Replica,
)
from tcbench.engine.backends.chainer.pillow import make_chainer_feed
from tcbench.engine.backends.chainer.rungs import RUNGS
from tcbench.engine.backends.chainer.sites import Site
from tcbench.engine.backends.replicas import check_replicas
from tcbench.engine.feeds.base import Feed, FeedRecipe
from tcbench.engine.feeds.dataset import ImageFolder, scan
from tcbench.engine.feeds.generated import ensure_generated
from tcbench.engine.feeds.modelled import make_workers_feed
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.engine.feeds.synthetic import make_synthetic_feed
from tcbench.engine.models import MODELS
from tcbench.engine.models.geometry import Network as Geometry
from tcbench.engine.world import current


class Step:
    """One training step and what its phases hand on: a batch, the loss, gradients."""

    def __init__(
        self,
        model: Any,
        optimizer: Optimizer,
        feed: Feed,
        exchange: Exchange | None = None,
        preconditioner: Preconditioner | None = None,
    ) -> None:
        self.model = model
        self._parameters = tuple(model.params())
        self.optimizer = optimizer
        self.feed = feed
        self.exchange = exchange
        self.preconditioner = preconditioner
        self._reduced = True
        self.x: Any = None
        self.t: Any = None
        self.loss: Any = None
        self.loss_value: Any = None

    def io(self) -> None:
        self.x, self.t = self.feed.next()

    def forward(self) -> None:
        self.loss = self.model.loss(self.x, self.t)

    def backward(self) -> None:
        for parameter in self._parameters:
            parameter.cleargrad()
        self.optimizer.backward(self.loss)
        # The graph, and with it every activation, goes before the next forward pass allocates.
        self.loss_value, self.loss = self.loss.array, None

    def allreduce(self) -> None:
        assert self.exchange is not None
        self._reduced = self.exchange.allreduce()

    def update(self) -> None:
        if self._reduced:
            self.optimizer.update()

    def phases(self) -> tuple[Phase, ...]:
        reduced = () if self.exchange is None else (self.allreduce,)
        divided = () if self.preconditioner is None else self.preconditioner.phases
        runs = (self.io, self.forward, self.backward, *reduced, *divided, self.update)
        return tuple(Phase(run.__name__, run) for run in runs)


class ChainerSession:
    """See `tcbench.core.session.Session`. Built from a cell; closed once. `rungs`, `geometry` and `make_feed` stand
    in for what the cell names, where runs are compared with each other rather than measured."""

    def __init__(
        self,
        cell: Cell,
        site: Site,
        *,
        rungs: Sequence[Any] | None = None,
        geometry: Geometry | None = None,
        make_feed: Callable[[FeedSpec], Feed] | None = None,
    ) -> None:
        rungs = rungs or [RUNGS[name] for name in cell.rungs]
        model_facts = MODELS[cell.model]
        self._macs = model_facts.macs(cell.variant, cell.image_size, cell.n_classes)
        with contextlib.ExitStack() as stack:
            stack.enter_context(threadpoolctl.threadpool_limits(cell.threads))
            stack.enter_context(chainer.using_config("train", True))
            stack.enter_context(site.scope())
            for rung in rungs:
                stack.enter_context(rung.scope(cell))

            parts = _fold(rungs, "parts", Parts(TensorSpec()), cell)
            stages = (geometry or model_facts).stages(cell.variant, cell.n_classes)
            model = Network(parts, stages, site.random(cell.seed))
            site.adopt(model)

            spec = OptimizerSpec(
                learning_rate=cell.train.learning_rate,
                momentum=cell.train.momentum,
                weight_decay=cell.train.weight_decay,
                build=PerParameterSGD,
            )
            spec = _fold(rungs, "optimizer", spec, cell)
            optimizer = spec.build(spec, model)

            self._world = world = current()
            replica = Replica(world, model, optimizer, site.reducer)
            exchange = preconditioner = None
            if world.size > 1:
                plan = _fold(rungs, "exchange", ExchangeSpec(PerParameter), cell)
                exchange = plan.build(plan, replica)
                stack.callback(exchange.close)
            if spec.precondition is not None:
                preconditioner = spec.precondition(replica)
                stack.callback(preconditioner.close)

            feed_spec = FeedSpec(
                images=_images(cell),
                batch_size=cell.batch_size,
                image_size=cell.image_size,
                n_classes=cell.n_classes,
                tensor=parts.spec,
                seed=cell.seed + world.rank,
                threads=cell.threads,
                hw_decoder_load=cell.input.hw_decoder_load,
                # A device's time is stretched by the host's speed (`tcbench.engine.measure.loop.at_host_speed`), and so
                # is that of decoding, which is not this host's.
                images_per_s=cell.input.images_per_s / cell.host_speed if cell.input.images_per_s else None,
            )
            recipe: FeedRecipe = _fold(rungs, "feed", FeedRecipe(feed_spec, make_chainer_feed, make_workers_feed), cell)
            if make_feed is None:
                make_feed = {"synthetic": make_synthetic_feed, "modelled": recipe.modelled}.get(cell.input.kind)
            feed = site.deliver((recipe if make_feed is None else recipe.of(make_feed)).make())
            stack.callback(feed.close)
            self.step = Step(model, optimizer, feed, exchange, preconditioner)
            self._phases: tuple[Phase, ...] = _fold(rungs, "step", self.step.phases(), cell)
            self._exit = stack.pop_all()
        self._site = site
        self._parameters = sum(int(p.size) for p in model.params())

    @property
    def phases(self) -> Sequence[Phase]:
        return self._phases

    @property
    def clock(self) -> Clock:
        return self._site.clock

    def detail(self, layers: Layers) -> contextlib.AbstractContextManager[None]:
        """See `tcbench.core.session.Detailed`."""
        return LayerHooks(self.step.model, layers)

    def facts(self) -> Facts:
        """Raises TrainingError when gradients have overflowed, or ranks hold different parameters."""
        step, exchange = self.step, self.step.exchange
        download = self._site.accelerator.download
        check_replicas(self._world, (download(p.array) for p in step.model.params()))
        step.optimizer.check()
        if step.preconditioner is not None:
            step.preconditioner.check()
        peak_bytes, of = self._site.peak_memory()
        return Facts(
            loss=None if step.loss_value is None else self._site.value(step.loss_value),
            peak_memory_bytes=peak_bytes,
            peak_memory_of=of,
            prefetch_depth=self.step.feed.prefetch_depth,
            decoding=getattr(self.step.feed, "decoding", None),
            parameters=self._parameters,
            macs_per_image=self._macs,
            plans=self._site.plans(),
            busy_s=self._site.busy_s(),
            reduced_bytes=exchange.reduced_bytes if exchange else 0,
            reduce_overlaps=exchange.overlaps if exchange else False,
            engine=exchange.engine if exchange else "",
            period=step.preconditioner.period if step.preconditioner else 1,
        )

    def close(self) -> None:
        self._exit.close()


def _fold(rungs: Sequence[Any], stage: str, start: Any, cell: Cell) -> Any:
    """Hand `start` through one stage of every rung, in the config's order."""
    return functools.reduce(lambda made, rung: getattr(rung, stage)(made, cell), rungs, start)


def _images(cell: Cell) -> ImageFolder | None:
    if cell.input.kind in ("synthetic", "modelled", "own"):
        return None
    return ensure_generated() if cell.input.path is None else scan(Path(cell.input.path), checked=True)
