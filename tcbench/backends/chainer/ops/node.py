"""What every op's FunctionNodes have in common.

One node per forward operation and one per gradient operation. A forward node keeps what its gradient needs as its
own attributes, set anew by each forward(); the gradient node reads them from the forward node when it runs, and its
only inputs are gradients. That is what makes chainer.static_graph right: on replay it calls forward() on the same
nodes, and what a node would have kept from the first iteration would be stale.
"""

from __future__ import annotations

from typing import Any

from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.ops.cpu import elementwise as kernels
from tcbench.backends.chainer.ops.parallel import Array

Variable = Any
"""chainer.Variable; Chainer has no types."""
Variables = tuple[Variable, ...]


class GradientNode(chainer.FunctionNode):
    """A gradient operation: cannot be differentiated again."""

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        raise NotImplementedError(
            f"{self.label} has no gradient of its own: tcbench's ops support first derivatives only, "
            "so call backward() with enable_double_backprop=False"
        )


class Add(GradientNode):
    """a + b for two gradients of the same array."""

    def forward_cpu(self, inputs: tuple[Array, Array]) -> tuple[Array]:
        return (kernels.add(*inputs),)


class ForwardNode(chainer.FunctionNode):
    """A forward operation. Gradients that meet at one array are added by our own kernel: Chainer's add on float16
    is about 50 times slower."""

    def backward_accumulate(
        self, indexes: tuple[int, ...], gys: Variables, accumulated: tuple[Variable | None, ...]
    ) -> Variables:
        gxs = self.backward(indexes, gys)
        return tuple(
            gx if before is None else before if gx is None else Add().apply((gx, before))[0]
            for gx, before in zip(gxs, accumulated, strict=True)
        )

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        """Gradients of the inputs in `indexes` and of no others, in that order."""
        raise NotImplementedError
