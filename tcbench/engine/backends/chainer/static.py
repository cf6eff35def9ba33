"""A model's body as one function, recorded at its first step and replayed after (see rungs/static_graph.py)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tcbench.engine.accelerators.protocol import Accelerator, Array, current
from tcbench.engine.accelerators.schedule import Schedule, ScheduleRecorder
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.layers import LayeredNode, LayerHooks
from tcbench.engine.backends.chainer.ops.node import Variables

_Body = Callable[[Any, Any], Variables]


def static_body(body: _Body) -> _Body:
    """`body(model, x)` recorded at its first step for each shape of x, and replayed after. In evaluation, and without
    gradients, it is as it was."""
    recorded: dict[tuple[Any, ...], _Recorded] = {}

    def replayed(model: Any, x: Any) -> Variables:
        if not (chainer.config.train and chainer.config.enable_backprop):
            return body(model, x)
        x = chainer.as_variable(x)
        of = recorded.get((x.shape, x.dtype))
        if of is None or of.backward is None:
            of = recorded[x.shape, x.dtype] = _Recorded(body, model)
        return RecordedGraph(of).apply((x, *of.parameters))

    return replayed


@dataclass(eq=False)
class _Recorded:
    """The schedules for one shape of input. The outputs and all gradients are the same arrays at every step.
    `gradients`: of the input, None, and of the parameters. `hooks` tell the recorder of the layers."""

    body: _Body
    model: Any
    passes: int = 0
    forward: Schedule | None = None
    ys: Variables = ()
    backward: Schedule | None = None
    gradients: Variables = ()

    def __post_init__(self) -> None:
        self.parameters: Variables = tuple(self.model.params())
        self.recorder = ScheduleRecorder(current())
        self.hooks = LayerHooks(self.model, self.recorder)

    def record(self, run: Callable[..., Any], *inputs: Array) -> tuple[Schedule, Any]:
        with self.hooks:
            return self.recorder.record(run, *inputs)


class RecordedGraph(LayeredNode):
    """The body as a function of its input, which has no gradient, and of the model's parameters."""

    def __init__(self, of: _Recorded) -> None:
        self.of = of
        of.passes += 1
        self.number = of.passes

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        of, self.x = self.of, inputs[0]
        if of.forward is None:
            # The graph that is recorded begins at a variable of its own.
            of.forward, of.ys = of.record(lambda x: of.body(of.model, chainer.as_variable(x)), self.x)
        else:
            of.forward(self.x, layers=self.layers)
        return tuple([y.array for y in of.ys])

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        of, arrays = self.of, [gy.array for gy in gys]
        if self.number != of.passes:
            raise RuntimeError("static_graph: a later forward pass has used the memory of this one")
        if of.backward is None:
            of.backward, gradients = of.record(
                lambda _, *gys: chainer.grad(of.ys, of.parameters, [chainer.as_variable(gy) for gy in gys]),
                self.x,
                *arrays,
            )
            of.gradients = (None, *gradients)
            for y in of.ys:
                y.unchain()
        else:
            of.backward(self.x, *arrays, layers=self.layers)
        return tuple([of.gradients[index] for index in indexes])
