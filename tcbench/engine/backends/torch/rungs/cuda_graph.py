"""cuda_graph: forward, backward and update of a step are captured once as a CUDA graph and replayed: the host launches
one thing per step."""

from __future__ import annotations

from typing import Any

from tcbench.core.session import Phase
from tcbench.engine.rung import EXACT, Needs, Requires, Rung


class CudaGraph(Rung):
    name = "cuda_graph"
    says = "the whole step captured as a CUDA graph and replayed"
    requires = Requires(
        devices=frozenset({"cuda"}),
        rungs=(Needs("fused_optimizer", when="fp16", why="any other waits for the GradScaler's word on overflow"),),
        alone="NCCL waits for ever at the end of a process group whose all-reduce is in a captured graph",
    )
    parity = EXACT
    source = "PyTorch documentation, CUDA semantics: CUDA Graphs, whole-network capture"

    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.backends.torch.batches import at_fixed_addresses

        return recipe.within(at_fixed_addresses)

    def step(self, phases: Any, settings: Any) -> Any:
        from tcbench.engine.backends.torch.replay import Replay

        io, *compute = phases
        replay = Replay(tuple(phase.run for phase in compute))
        return (io, Phase("replay", replay, replay.captured))


RUNG = CudaGraph()
