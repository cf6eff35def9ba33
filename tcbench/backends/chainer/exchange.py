"""Gradients averaged over ranks, between backward and update: by ChainerMN's own communicator, parameter by parameter.

Owns the order of calls, which is the same on every rank. The weights that ranks start with are equal by their seed, so
that nothing is broadcast (ChainerMN's optimizer does that in its first step).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcbench import work
from tcbench.accelerators.protocol import Array, current
from tcbench.backends.chainer.ops.node import dtype_of, half_of
from tcbench.backends.chainer.optimizers import to_half, to_single
from tcbench.backends.chainer.parts import ExchangeSpec, Optimizer
from tcbench.core.world import World


class PerParameter:
    """ChainerMN's communicator, as its multi-node optimizer calls it: `naive` where arrays are the host's, which makes
    one MPI call for each parameter. It sends float32, also of 16-bit gradients."""

    def __init__(self, spec: ExchangeSpec, world: World, model: Any, optimizer: Optimizer) -> None:
        from chainermn import create_communicator

        self._communicator = create_communicator("naive", world.mpi)
        self._model = _Widened(model) if any(_unknown_to_chainermn(p) for p in model.params()) else model
        self.engine = f"ChainerMN naive over {mpi_library()}"
        self.reduced_bytes = sum(p.size * work.ITEM_BYTES[work.wide(dtype_of(p.array))] for p in model.params())

    def allreduce(self) -> bool:
        """See Exchange."""
        self._communicator.multi_node_mean_grad(self._model)
        if isinstance(self._model, _Widened):
            self._model.narrow()
        return True

    def close(self) -> None:
        """See Exchange."""
        self._communicator.finalize()


def mpi_library() -> str:
    """Name and version of the MPI that this process uses."""
    from mpi4py import MPI

    return str(MPI.Get_library_version()).partition(",")[0].strip()


def _unknown_to_chainermn(parameter: Any) -> bool:
    return half_of(parameter.array) == "bfloat16"


@dataclass
class _Wide:
    """A parameter as ChainerMN reads it: its gradient in float32."""

    data: Array
    grad: Array


class _Widened:
    """A model whose bfloat16 gradients, which ChainerMN does not know, are seen in float32."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._pairs: list[tuple[Any, _Wide]] = []

    def namedparams(self) -> Iterator[tuple[str, Any]]:
        """ChainerMN's question, once a step."""
        accelerator = current()
        self._pairs = []
        for name, parameter in self._model.namedparams():
            if not _unknown_to_chainermn(parameter):
                yield name, parameter
                continue
            wide = accelerator.empty(parameter.shape, np.float32)
            accelerator.launch(to_single(parameter.size, "bfloat16"), parameter.grad, wide)
            self._pairs.append((parameter, _Wide(parameter.array, wide)))
            yield name, self._pairs[-1][1]

    def narrow(self) -> None:
        """Write the means back into the parameters' own gradients."""
        for parameter, wide in self._pairs:
            current().launch(to_half(parameter.size, "bfloat16"), wide.grad, parameter.grad)
