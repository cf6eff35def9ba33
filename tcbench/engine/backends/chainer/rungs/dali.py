"""dali: NVIDIA DALI decodes and augments in threads of its own while the step before is computed."""

from typing import Any

from tcbench.engine.rung import Package, Parity, Requires, Rung


class Dali(Rung):
    name = "dali"
    says = "input by NVIDIA DALI, prefetched in its own threads"
    requires = Requires(packages=(Package("nvidia.dali", "uv sync (x86-64 Linux only)"),))
    conflicts = frozenset({"opencv"})
    parity = Parity("input", pixels=1.0)
    source = "talk, slides 19 to 22"

    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.feeds.dali import make_dali_feed
        from tcbench.engine.feeds.modelled import MixedFeed

        return recipe.of(make_dali_feed, MixedFeed)
