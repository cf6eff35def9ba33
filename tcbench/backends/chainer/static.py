"""A model's body as one function, recorded at its first step and replayed after (see rungs/static_graph.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tcbench.accelerators.protocol import Accelerator, Array, current
from tcbench.accelerators.schedule import Recorder, Schedule
from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.ops.node import Node, Variable, Variables

_Body = Callable[[Any, Any], Any]


def static_body(body: _Body) -> _Body:
    """`body(model, x)` recorded at its first step for each shape of x, and replayed after. In evaluation, and without
    gradients, it is as it was."""
    recorded: dict[tuple[Any, ...], _Recorded] = {}

    def replayed(model: Any, x: Any) -> Any:
        if not (chainer.config.train and chainer.config.enable_backprop):
            return body(model, x)
        x = chainer.as_variable(x)
        of = recorded.get((x.shape, x.dtype))
        if of is None or of.backward is None:
            of = recorded[x.shape, x.dtype] = _Recorded(functools.partial(body, model), tuple(model.params()))
        return RecordedGraph(of).apply((x, *of.parameters))[0]

    return replayed


class _Recorded:
    """The schedules for one shape of input. The output and all gradients are the same arrays at every step.

    `gradients`: of the input, None, and of the parameters."""

    def __init__(self, body: Callable[[Variable], Variable], parameters: Variables) -> None:
        self.body = body
        self.parameters = parameters
        self.recorder = Recorder(current())
        self.passes = 0
        self.forward: Schedule | None = None
        self.y: Variable = None
        self.backward: Schedule | None = None
        self.gradients: Variables = ()


class RecordedGraph(Node):
    """The body as a function of its input, which has no gradient, and of the model's parameters."""

    def __init__(self, of: _Recorded) -> None:
        self.of = of
        of.passes += 1
        self.number = of.passes

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array]:
        of, self.x = self.of, inputs[0]
        if of.forward is None:
            # The graph that is recorded begins at a variable of its own.
            of.forward, of.y = of.recorder.record(lambda x: of.body(chainer.as_variable(x)), self.x)
        else:
            of.forward(self.x)
        return (of.y.array,)

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        of, (gy,) = self.of, gys
        if self.number != of.passes:
            raise RuntimeError("static_graph: a later forward pass has used the memory of this one")
        if of.backward is None:
            of.backward, gradients = of.recorder.record(
                lambda _, gy: chainer.grad([of.y], of.parameters, [chainer.as_variable(gy)]), self.x, gy.array
            )
            of.gradients = (None, *gradients)
            of.y.unchain()
        else:
            of.backward(self.x, gy.array)
        return tuple([of.gradients[index] for index in indexes])
