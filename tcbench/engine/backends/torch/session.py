"""A PyTorch training step as a Session: rungs folded over parts, then built, then run phase by phase."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tcbench.core.record import Cell
from tcbench.core.session import Clock, Facts, Phase
from tcbench.engine.backends.replicas import check_replicas
from tcbench.engine.backends.torch.batches import Batches, pillow, synthetic
from tcbench.engine.backends.torch.distributed import DataParallel, process_group
from tcbench.engine.backends.torch.network import Network
from tcbench.engine.backends.torch.parts import Forward, Optimizer, OptimizerSpec, Parts
from tcbench.engine.backends.torch.rungs import RUNGS
from tcbench.engine.backends.torch.sites import Site
from tcbench.engine.feeds.base import FeedRecipe
from tcbench.engine.feeds.dataset import ImageFolder, scan
from tcbench.engine.feeds.generated import ensure_generated
from tcbench.engine.feeds.spec import FeedSpec
from tcbench.engine.models import MODELS
from tcbench.engine.models.geometry import Network as Geometry
from tcbench.engine.world import current


class Step:
    """One training step and what its phases hand on: a batch, the loss, gradients."""

    def __init__(
        self,
        forward: Forward,
        optimizer: Optimizer,
        batches: Batches,
        autocast: Callable[[], Any],
        exchange: DataParallel | None = None,
        auxiliary_weights: Sequence[float] = (),
    ) -> None:
        self.model = forward
        self.auxiliary_weights = auxiliary_weights
        self.exchange = exchange
        self.optimizer = optimizer
        self.batches = batches
        self.autocast = autocast
        self.x: Any = None
        self.t: Any = None
        self.loss: Any = None
        self.loss_value: Any = math.nan

    def io(self) -> None:
        self.x, self.t = self.batches.next()

    def forward(self) -> None:
        with self.autocast():
            logits, *others = self.model(self.x)
            self.loss = F.cross_entropy(logits, self.t)
            for weight, other in zip(self.auxiliary_weights, others, strict=True):
                self.loss = self.loss + weight * F.cross_entropy(other, self.t)

    def backward(self) -> None:
        self.optimizer.backward(self.loss)
        # The graph goes before the next forward pass allocates.
        self.loss_value, self.loss = self.loss.detach(), None

    def update(self) -> None:
        self.optimizer.update()

    def phases(self) -> tuple[Phase, ...]:
        between = () if self.exchange is None else (self.exchange.allreduce,)
        runs = (self.io, self.forward, self.backward, *between, self.update)
        return tuple(Phase(run.__name__, run) for run in runs)


class TorchSession:
    """See `tcbench.core.session.Session`. Built from a cell; closed once. `geometry` stands in for the cell's model."""

    def __init__(self, cell: Cell, site: Site, *, geometry: Geometry | None = None) -> None:
        rungs = [RUNGS[name] for name in cell.rungs]
        self._site = site
        self._macs = MODELS[cell.model].macs(cell.variant, cell.image_size, cell.n_classes)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_threads(cell.threads))
            stack.enter_context(site.scope())
            for rung in rungs:
                stack.enter_context(rung.scope(cell))

            parts: Parts = _fold(rungs, "parts", Parts(), cell)
            stages = (geometry or MODELS[cell.model]).stages(cell.variant, cell.n_classes)
            model = Network(stages, np.random.RandomState(cell.seed))
            model.train().to(device=site.device, memory_format=parts.memory_format)

            spec = OptimizerSpec(cell.train.learning_rate, cell.train.momentum, cell.train.weight_decay)
            optimizer = Optimizer(_fold(rungs, "optimizer", spec, cell), model, site.device)

            self._world = world = current()
            self._exchange = None
            if world.size > 1:
                stack.enter_context(process_group(world, site.backend))
                self._exchange = DataParallel(model, site)

            feed_spec = FeedSpec(
                images=_images(cell),
                batch_size=cell.batch_size,
                image_size=cell.image_size,
                n_classes=cell.n_classes,
                tensor=parts.pixels,
                seed=cell.seed + world.rank,
                threads=cell.threads,
                hw_decoder_load=cell.input.hw_decoder_load,
            )
            recipe: FeedRecipe = _fold(rungs, "feed", FeedRecipe(feed_spec, pillow), cell)
            batches = (recipe.of(synthetic) if cell.input.kind == "synthetic" else recipe).make(site)
            stack.callback(batches.close)
            autocast = functools.partial(
                torch.autocast, site.device.type, parts.autocast, enabled=parts.autocast is not None
            )
            self.model = model
            forward = parts.body(self._exchange.model if self._exchange else model)
            self.step = Step(forward, optimizer, batches, autocast, self._exchange, model.auxiliary_weights)
            self._phases: tuple[Phase, ...] = _fold(rungs, "step", self.step.phases(), cell)
            self._exit = stack.pop_all()

    @property
    def phases(self) -> Sequence[Phase]:
        return self._phases

    @property
    def clock(self) -> Clock:
        return self._site.clock

    def facts(self) -> Facts:
        """Raises TrainingError when gradients have overflowed, or ranks hold different parameters."""
        check_replicas(self._world, (p.detach().cpu().numpy() for p in self.model.parameters()))
        self.step.optimizer.check()
        peak_bytes, of = self._site.peak_memory()
        return Facts(
            loss=float(self.step.loss_value),
            peak_memory_bytes=peak_bytes,
            peak_memory_of=of,
            prefetch_depth=self.step.batches.prefetch_depth,
            decoding=getattr(self.step.batches, "decoding", None),
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            macs_per_image=self._macs,
            reduced_bytes=self._exchange.reduced_bytes if self._exchange else 0,
            reduce_overlaps=self._exchange is not None,  # with backward, always
            engine=self._exchange.engine if self._exchange else "",
        )

    def close(self) -> None:
        self._exit.close()


def _fold(rungs: Sequence[Any], stage: str, start: Any, cell: Cell) -> Any:
    """Hand `start` through one stage of every rung, in the config's order."""
    return functools.reduce(lambda made, rung: getattr(rung, stage)(made, cell), rungs, start)


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    """PyTorch's threads within an operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _images(cell: Cell) -> ImageFolder | None:
    if cell.input.kind == "synthetic":
        return None
    return ensure_generated() if cell.input.path is None else scan(Path(cell.input.path), checked=True)
