"""The rung `double_buffering`: one step's gradients are reduced while the next step computes its own.

Each update applies the gradients of the previous step. This changes training: every gradient was computed with weights
that are one update old."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import EXACT_ALONE, Needs, Requires, Rung


class DoubleBuffering(Rung):
    """Gradients that are applied one step late."""

    name = "double_buffering"
    says = "gradients applied one step late, reduced during the next step"
    requires = Requires(rungs=(Needs("flat_allreduce", why="gradients wait for their all-reduce in a buffer"),))
    conflicts: ClassVar = {
        "overlap": "both hide the same all-reduce",
        "dynamic_scale": "the scale may have changed when a step's gradients are divided by it",
        "cuda_graph": "a graph ends with its step, but the all-reduce is still running",
    }
    parity = EXACT_ALONE
    source = "ChainerMN documentation, create_multi_node_optimizer: double_buffering"

    def exchange(self, exchange: Any, settings: Any) -> Any:
        from tcbench.engine.backends.chainer.exchange import DoubleBuffered

        return replace(exchange, build=DoubleBuffered)
