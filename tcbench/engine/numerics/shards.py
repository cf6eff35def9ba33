"""Steps by which a single process computes what several ranks would compute together.

It processes the ranks' shards of the batch one after the other. As with real ranks, batch normalisation sees only its
own shard and has running statistics per rank, and the mean of the gradients is applied. Nothing is sent, so the times
say nothing about real ranks. tests/engine/backends/chainer/test_ranks.py compares such a process with real ranks."""

import copy
from collections.abc import Sequence
from typing import Any

from tcbench.engine.backends.chainer.session import ChainerStep


class _Shards(ChainerStep):
    """A step that processes its batch in `shards` equal parts."""

    def __init__(self, *built: Any, shards: int) -> None:
        super().__init__(*built)
        self._shards = shards

    def parts(self) -> Sequence[tuple[Any, Any]]:
        """Return the images and labels of each shard of the current batch."""
        n = len(self.t) // self._shards
        return [(self.x[i * n : (i + 1) * n], self.t[i * n : (i + 1) * n]) for i in range(self._shards)]

    def forward(self) -> None:
        """Do nothing: `backward` also runs the forward passes, shard by shard."""

    def _pass(self, x: Any, t: Any) -> Any:
        """Run one shard's forward and backward pass and return its loss."""
        self.x, self.t = x, t
        super().forward()
        super().backward()
        return self.loss_value


class RanksInTurn(_Shards):
    """A step of several ranks: the gradients of all shards are averaged and applied once."""

    def __init__(self, *built: Any, shards: int) -> None:
        super().__init__(*built, shards=shards)
        normalised = [link for link in self.model.links() if getattr(link, "running", None) is not None]
        # Each rank has its own running statistics. Those of the first rank are the model's.
        self._running = [
            [(link, link.running if rank == 0 else copy.deepcopy(link.running)) for link in normalised]
            for rank in range(shards)
        ]

    def backward(self) -> None:
        """Run all shards forward and backward, and average their gradients and losses."""
        sums: list[Any] = []
        loss = 0.0
        for (x, t), running in zip(self.parts(), self._running, strict=True):
            for link, statistics in running:
                link.running = statistics
            loss = loss + self._pass(x, t)
            gradients = [parameter.grad for parameter in self._parameters]
            sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
        for link, statistics in self._running[0]:
            link.running = statistics
        for parameter, gradient in zip(self._parameters, sums, strict=True):
            parameter.grad = gradient * gradient.dtype.type(1 / self._shards)
        self.loss_value = loss / self._shards


class StepsInTurn(_Shards):
    """The comparison to `RanksInTurn`: the same shards, but each is a full training step of its own, with an update, as
    if one rank trained alone."""

    def backward(self) -> None:
        """Run each shard forward and backward and apply its gradients. `loss_value` becomes the shards' mean loss."""
        loss = 0.0
        for x, t in self.parts():
            loss = loss + self._pass(x, t)
            super().update()
        self.loss_value = loss / self._shards

    def update(self) -> None:
        """Do nothing: `backward` also runs the updates, shard by shard."""
