"""The rung `static_graph`: the graph of the model's body is recorded at the first step and then replayed.

The idea is Chainer's static sub-graph optimisation, which the talk measured; the implementation is our own. Chainer
replays one Python function per operation, between hooks that put its arrays in place. Ours replays the launches that
these functions made (`tcbench.engine.accelerators.schedule`), in a third of the host's time. The loss, the backward
traversal and the update are the same as without this rung. Chainer's version has four silent errors that cannot occur
here:

- A backward node that copies intermediates of forward keeps reading those of iteration 1. Our launches are bound to
  arrays that are the same at every step.
- The first iteration runs the forward pass twice, so running statistics are updated twice. Our recording is the pass
  that counts.
- The input gets a gradient that nobody needs. Our body is a function of which only the parameters have gradients.
- Gradients of parameters are not divided by the loss scale. Our optimizers do that."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import EXACT, Rung


class StaticGraph(Rung):
    """A model body whose graph is recorded once and replayed."""

    name = "static_graph"
    says = "record the graph once, replay it without Python's graph building"
    conflicts = frozenset({"cuda_graph"})
    parity = EXACT
    effects: ClassVar = {"graph": "replayed"}
    source = "talk, slides 31 and 32"

    def parts(self, parts: Any, settings: Any) -> Any:
        from tcbench.engine.backends.chainer.static import static_body

        return replace(parts, body=static_body)
