"""static_graph: the graph of the model's body is recorded at the first step and replayed after, with no graph built.

The idea is Chainer's static sub-graph optimisation, which the talk measured; what records and replays is ours. Chainer
replays one Python function per operation, between hooks that put its arrays in place. Ours replays the launches that
these functions made (`tcbench.engine.accelerators.schedule`), in a third of the host's time. The loss, backward's walk
from it to the parameters' gradients and the update are as without this rung. Chainer's is also silently wrong in four
ways; here there is no room for them:

- a backward node that copies forward's intermediates goes on reading iteration 1's: a launch is bound to arrays, the
  same at every step;
- the first iteration runs the forward pass twice, so that running statistics are updated twice: recording is the pass
  that counts;
- the input is given a gradient that nobody asked for: the body is a function of which the parameters alone have one;
- loss scaling is not divided out of the parameters' gradients: our optimizers do that."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import EXACT, Rung


class StaticGraph(Rung):
    name = "static_graph"
    says = "record the graph once, replay it without Python's graph building"
    conflicts = frozenset({"cuda_graph"})
    parity = EXACT
    shows: ClassVar = {"graph": "replayed"}
    source = "talk, slides 31 and 32"

    def parts(self, parts: Any, settings: Any) -> Any:
        from tcbench.engine.backends.chainer.static import static_body

        return replace(parts, body=static_body)
