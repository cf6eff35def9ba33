"""The rung `overlap`: gradients are reduced in buckets while backward runs, from the last layer on.

A bucket's all-reduce starts as soon as its gradients are computed. The phase allreduce is the remaining wait."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import EXACT_ALONE, Needs, Requires, Rung


class Overlap(Rung):
    """Gradients reduced in buckets during backward."""

    name = "overlap"
    says = "gradients reduced in buckets while backward runs"
    requires = Requires(rungs=(Needs("flat_allreduce", why="a bucket is a part of its buffer"),))
    conflicts: ClassVar = {
        "static_graph": "a recorded backward pass returns all gradients at its end",
        "cuda_graph": "not tested: NCCL on a second stream in a captured step",
    }
    parity = EXACT_ALONE
    source = "S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, 2020, section 3.2"

    def exchange(self, exchange: Any, settings: Any) -> Any:
        from tcbench.engine.backends.chainer.exchange import Overlapped

        return replace(exchange, build=Overlapped)
