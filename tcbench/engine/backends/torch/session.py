"""The training session of the PyTorch backend."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tcbench.core.record import Cell
from tcbench.engine.backends import initial
from tcbench.engine.backends.session import BaseSession, BaseStep
from tcbench.engine.backends.torch.batches import pillow, synthetic
from tcbench.engine.backends.torch.distributed import DataParallel, process_group
from tcbench.engine.backends.torch.network import TorchNetwork
from tcbench.engine.backends.torch.parts import Forward, TorchOptimizer, TorchOptimizerSpec, TorchParts
from tcbench.engine.backends.torch.rungs import RUNGS
from tcbench.engine.backends.torch.sites import Site
from tcbench.engine.feeds.base import Feed, FeedRecipe
from tcbench.engine.models.geometry import Network


class TorchStep(BaseStep):
    """A PyTorch training step. `autocast` makes the context of the forward pass."""

    def __init__(
        self,
        forward: Forward,
        optimizer: TorchOptimizer,
        feed: Feed,
        autocast: Callable[[], Any],
        exchange: DataParallel | None = None,
        auxiliary_weights: Sequence[float] = (),
    ) -> None:
        super().__init__(forward, optimizer, feed, exchange)
        self.auxiliary_weights = auxiliary_weights
        self.autocast = autocast
        self.loss_value = math.nan

    def forward(self) -> None:
        """Compute the loss, plus the weighted losses of auxiliary classifiers."""
        with self.autocast():
            logits, *auxiliary = self.model(self.x)
            self.loss = F.cross_entropy(logits, self.t)
            for weight, other in zip(self.auxiliary_weights, auxiliary, strict=True):
                self.loss = self.loss + weight * F.cross_entropy(other, self.t)

    def backward(self) -> None:
        self.optimizer.backward(self.loss)
        # Frees the graph before the next forward pass allocates memory.
        self.loss_value, self.loss = self.loss.detach(), None


class TorchSession(BaseSession):
    """A training session in PyTorch."""

    step: TorchStep

    def __init__(self, cell: Cell, site: Site, *, geometry: Network | None = None) -> None:
        super().__init__(cell, site, [RUNGS[name] for name in cell.rungs], (_threads(cell.threads),), geometry)

    def build(self, stack: contextlib.ExitStack) -> TorchStep:
        """Build model, optimizer, feed and, on many ranks, DistributedDataParallel."""
        cell, site = self.cell, self.site
        parts: TorchParts = self.fold("parts", TorchParts())
        with initial.random_state(cell.seed) as rng:
            self.model = model = TorchNetwork(self._stages, rng)
        model.train().to(device=site.device, memory_format=parts.memory_format)
        self.n_parameters = sum(parameter.numel() for parameter in model.parameters())
        spec = TorchOptimizerSpec(cell.train.learning_rate, cell.train.momentum, cell.train.weight_decay)
        optimizer = TorchOptimizer(self.fold("optimizer", spec), model, site.device)
        exchange = None
        if self._world.size > 1:
            stack.enter_context(process_group(self._world, site.backend))
            exchange = DataParallel(model, site)
        recipe: FeedRecipe = self.fold("feed", FeedRecipe(self.feed_spec(parts.pixels), pillow))
        feed = (recipe.with_source(synthetic) if cell.input.kind == "synthetic" else recipe).make(site)
        stack.callback(feed.close)
        autocast = functools.partial(
            torch.autocast, site.device.type, parts.autocast, enabled=parts.autocast is not None
        )
        forward = parts.body(exchange.model if exchange else model)
        return TorchStep(forward, optimizer, feed, autocast, exchange, list(model.auxiliary.values()))

    def parameters(self) -> Iterable[Any]:
        return (parameter.detach().cpu().numpy() for parameter in self.model.parameters())

    def loss(self) -> float:
        return float(self.step.loss_value)


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    """Run PyTorch's operations on `n` threads."""
    previous = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
