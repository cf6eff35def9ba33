"""One process that takes the shards of many ranks in turn, and trains as they would together.

That is what N ranks compute: each rank's batch normalisation sees its own shard alone, with running statistics of its
own, and all apply the mean of the ranks' gradients to equal parameters (tests/engine/backends/chainer/test_ranks.py
holds real ranks against such a process). No message is sent, so no time here says anything of ranks."""

import copy
from collections.abc import Sequence
from typing import Any

from tcbench.engine.backends.chainer.session import Step


class _Shards(Step):
    """A step whose batch is taken in equal parts. `shards`: how many."""

    def __init__(self, *built: Any, shards: int) -> None:
        super().__init__(*built)
        self._shards = shards

    def parts(self) -> Sequence[tuple[Any, Any]]:
        """Images and labels of each shard, of the batch that `io` brought."""
        n = len(self.t) // self._shards
        return [(self.x[i * n : (i + 1) * n], self.t[i * n : (i + 1) * n]) for i in range(self._shards)]

    def forward(self) -> None:
        """The forward passes lie between the backward passes."""

    def _pass(self, x: Any, t: Any) -> Any:
        """One shard's forward and backward pass; returns its loss."""
        self.x, self.t = x, t
        super().forward()
        super().backward()
        return self.loss_value


class RanksInTurn(_Shards):
    """Many ranks' step: gradients are averaged over the shards, then applied once."""

    def __init__(self, *built: Any, shards: int) -> None:
        super().__init__(*built, shards=shards)
        normalised = [link for link in self.model.links() if getattr(link, "running", None) is not None]
        # Each rank has running statistics of its own; the first one's are the model's.
        self._running = [
            [(link, link.running if rank == 0 else copy.deepcopy(link.running)) for link in normalised]
            for rank in range(shards)
        ]

    def backward(self) -> None:
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
    """One rank's steps at its own batch size: each shard is a step with its own update."""

    def backward(self) -> None:
        loss = 0.0
        for x, t in self.parts():
            loss = loss + self._pass(x, t)
            super().update()
        self.loss_value = loss / self._shards

    def update(self) -> None:
        """Done, shard by shard."""
