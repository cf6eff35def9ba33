"""The rung `batched`: one weight update for all parameters.

The parameters are stored in one flat array (as in Chainer pull request 5841, which was never merged). Momentum, weight
decay, loss unscaling and the master copy are one pass, block by block in cache."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import ROUNDING, Rung


class Batched(Rung):
    """One weight update for all parameters, which are stored in one flat array."""

    name = "batched"
    says = "one weight update for all parameters"
    parity = ROUNDING
    effects: ClassVar = {"update": "all parameters at once"}
    source = "talk, slide 24"

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        from tcbench.engine.backends.chainer.optimizers import BatchedSGD

        return replace(optimizer, build=BatchedSGD)
