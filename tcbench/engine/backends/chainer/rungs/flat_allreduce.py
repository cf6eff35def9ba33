"""The rung `flat_allreduce`: one all-reduce for the gradients of all parameters.

Gradients are packed into one float32 buffer. NCCL reduces it in one call, MPI in a few, and the batched update reads
it."""

from dataclasses import replace
from typing import Any

from tcbench.engine.rung import EXACT_ALONE, Needs, Requires, Rung


class FlatAllreduce(Rung):
    """One all-reduce over a buffer of all gradients."""

    name = "flat_allreduce"
    says = "one all-reduce over a buffer with the gradients of all parameters"
    requires = Requires(rungs=(Needs("batched", why="its update reads the buffer that is reduced"),))
    parity = EXACT_ALONE
    source = "T. Akiba et al., Extremely Large Minibatch SGD, 2017, section 3.2"

    def exchange(self, exchange: Any, settings: Any) -> Any:
        from tcbench.engine.backends.chainer.exchange import Flat

        return replace(exchange, build=Flat)
