"""static_graph: Chainer's static sub-graph optimisation, which records the first iteration and replays it.

Chainer's own is silently wrong in four ways; each is made right here or in the ops:

- a backward node that copies forward's intermediates goes on reading iteration 1's: our backward nodes read them live
  from their forward node;
- the first iteration runs the forward pass twice, so running statistics would be updated twice: the recording pass's
  update is taken back;
- the input is given a gradient that nobody asked for: the recorded body cuts it off;
- loss scaling is not divided out of the parameters' gradients: hence the need for `batched`, which does so itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.core.rung import EXACT, Needs, Requires, Rung


class StaticGraph(Rung):
    name = "static_graph"
    says = "record the graph once, replay it without Python's graph building"
    requires = Requires(
        rungs=(
            Needs("batched", when="fp16", why="a replayed graph does not unscale gradients, the batched update does"),
        )
    )
    conflicts = frozenset({"cuda_graph"})
    parity = EXACT
    shows: ClassVar = {"graph": "replayed"}
    source = "talk, slides 31 and 32"

    def parts(self, parts: Any, settings: Any) -> Any:
        from tcbench.backends.chainer.static import static_body

        return replace(parts, body=static_body)


RUNG = StaticGraph()
