"""Recording and replay of a model's body as one function (see rungs/static_graph.py)."""

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
    """Return `body(model, x)` as a function that records its first step for each shape of x, and replays it later. In
    evaluation, and without gradients, it calls `body` unchanged."""
    recordings: dict[tuple[Any, ...], _Recording] = {}

    def replayed(model: Any, x: Any) -> Variables:
        """Replay the recording for inputs of this shape and dtype. If there is none, record it while the body runs."""
        if not (chainer.config.train and chainer.config.enable_backprop):
            return body(model, x)
        x = chainer.as_variable(x)
        recording = recordings.get((x.shape, x.dtype))
        if recording is None or recording.backward is None:
            recording = recordings[x.shape, x.dtype] = _Recording(body, model)
        return RecordedGraph(recording).apply((x, *recording.parameters))

    return replayed


@dataclass(eq=False)
class _Recording:
    """The recorded schedules for one shape of input. Outputs and gradients are the same arrays at every step.

    `passes` counts forward passes. `gradients` holds None for the input, then the gradient of each parameter. `hooks`
    report layers to the recorder."""

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
        """Run a function; return the schedule of its launches, and its result."""
        with self.hooks:
            return self.recorder.record(run, *inputs)


class RecordedGraph(LayeredNode):
    """The body as one function of its input, which gets no gradient, and of the model's parameters."""

    def __init__(self, recording: _Recording) -> None:
        self.recording = recording
        recording.passes += 1
        self.number = recording.passes

    def forward_on(self, accelerator: Accelerator, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Record the body's forward pass the first time; later replay it with this input."""
        recording, self.x = self.recording, inputs[0]
        if recording.forward is None:
            # The recorded graph starts at a new variable.
            recording.forward, recording.ys = recording.record(
                lambda x: recording.body(recording.model, chainer.as_variable(x)), self.x
            )
        else:
            recording.forward(self.x, layers=self.layers)
        return tuple([y.array for y in recording.ys])

    def backward(self, indexes: tuple[int, ...], gys: Variables) -> Variables:
        """Record the gradients of all parameters the first time; later replay them."""
        recording, arrays = self.recording, [gy.array for gy in gys]
        ys, parameters = recording.ys, recording.parameters
        if self.number != recording.passes:
            raise RuntimeError("static_graph: a later forward pass has used the memory of this one")
        if recording.backward is None:
            recording.backward, gradients = recording.record(
                lambda _, *gys: chainer.grad(ys, parameters, [chainer.as_variable(gy) for gy in gys]), self.x, *arrays
            )
            recording.gradients = (None, *gradients)
            for y in ys:
                y.unchain()  # frees the graph, which the recording replaces
        else:
            recording.backward(self.x, *arrays, layers=self.layers)
        return tuple([recording.gradients[index] for index in indexes])
