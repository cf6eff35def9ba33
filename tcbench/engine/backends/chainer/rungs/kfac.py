"""The rung `kfac`: SGD applies gradients that were divided by the curvature of the loss, layer by layer. Training with
very large batches takes fewer steps, each of which costs more."""

import functools
from dataclasses import replace
from typing import Any, ClassVar

from tcbench.core.record import KfacSettings
from tcbench.engine.rung import Parity, Rung, Tolerance


class Kfac(Rung):
    """Gradients divided by Kronecker-factored curvature."""

    name = "kfac"
    says = "second order: gradients divided by Kronecker-factored curvature"
    conflicts: ClassVar = {
        "fp16": "its factors are computed from float32 activations and gradients",
        "bf16": "its factors are computed from float32 activations and gradients",
        "static_graph": "a replayed graph does not expose the inputs and gradients of layers",
        "cuda_graph": "cuSOLVER's calls cannot be captured",
        "double_buffering": "a gradient would be divided by the curvature at weights that are one step newer",
        "fp16_allreduce": "gradients divided by curvature can exceed float16's range",
    }
    parity = Parity("other", float32=Tolerance(0.1, 0.4, 0.01))
    effects: ClassVar = {"gradients": "divided by curvature"}
    source = "talk, slide 36; K. Osawa et al., Large-Scale Distributed Second-Order Optimization Using K-FAC, 2019"

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        from tcbench.engine.backends.chainer.kfac import KfacPreconditioner

        kfac = settings.train.kfac or KfacSettings()
        return replace(optimizer, precondition=functools.partial(KfacPreconditioner, kfac))
