"""The rung `fp16_allreduce`: gradients are sent in 16 bits, which halves the bytes.

They are sent as float16, like ChainerMN's allreduce_grad_dtype, or as bfloat16 if the config stores that."""

from dataclasses import replace
from typing import Any

from tcbench.engine.rung import EXACT_ALONE, Needs, Requires, Rung


class Fp16Allreduce(Rung):
    """An all-reduce of 16-bit gradients."""

    name = "fp16_allreduce"
    says = "gradients sent in 16 bits"
    requires = Requires(
        rungs=(Needs("flat_allreduce", why="gradients are converted to 16 bits when they are packed into its buffer"),)
    )
    parity = EXACT_ALONE
    source = "T. Akiba et al., Extremely Large Minibatch SGD, 2017, section 3.2"

    def exchange(self, exchange: Any, settings: Any) -> Any:
        return replace(exchange, half=True)
