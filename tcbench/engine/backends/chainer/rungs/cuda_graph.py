"""The rung `cuda_graph`: forward, backward and update are captured once as a CUDA graph and then replayed.

The host launches the whole step at once. This is the modern form of a static graph."""

from typing import Any, ClassVar

from tcbench.engine.rung import EXACT, Needs, Requires, Rung
from tcbench.engine.session import Phase


class CudaGraph(Rung):
    """A step captured as a CUDA graph and replayed."""

    name = "cuda_graph"
    says = "the whole step captured as a CUDA graph and replayed"
    requires = Requires(
        devices=frozenset({"cuda"}),
        rungs_on_many_ranks=(
            Needs("flat_allreduce", why="ChainerMN's communicator copies from memory that is not pinned"),
        ),
    )
    conflicts = frozenset({"static_graph"})
    parity = EXACT
    effects: ClassVar = {"launches": "one"}
    source = "CUDA C++ Programming Guide, CUDA Graphs"

    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.feeds.fixed import at_fixed_addresses

        return recipe.with_wrapper(at_fixed_addresses)

    def step(self, phases: Any, settings: Any) -> Any:
        """Keep the input's phase, and replace all others by one that replays them as a captured graph."""
        from tcbench.engine.accelerators.replay import Replay

        io, *compute = phases
        replay = Replay(tuple(phase.run for phase in compute))
        return (io, Phase("replay", replay, replay.captured))
