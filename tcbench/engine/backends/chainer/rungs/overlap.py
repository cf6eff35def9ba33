"""overlap: gradients are reduced while backward runs: in buckets, from the last layer on, each as soon as its gradients
are there. The phase allreduce is the wait that is left."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import EXACT_ALONE, Needs, Requires, Rung


class Overlap(Rung):
    name = "overlap"
    says = "gradients reduced in buckets while backward runs"
    requires = Requires(rungs=(Needs("flat_allreduce", why="a bucket is a part of its buffer"),))
    conflicts: ClassVar = {
        "static_graph": "a recorded backward pass gives all gradients at its end",
        "cuda_graph": "untried: NCCL on a second stream in a captured step",
    }
    parity = EXACT_ALONE
    source = "S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, 2020, section 3.2"

    def exchange(self, exchange: Any, settings: Any) -> Any:
        from tcbench.engine.backends.chainer.exchange import Overlapped

        return replace(exchange, build=Overlapped)
