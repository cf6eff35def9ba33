"""dali: NVIDIA DALI decodes and augments in threads of its own while the step before is computed."""

from typing import Any

from tcbench.engine.feeds.rungs import DaliInput


class Dali(DaliInput):
    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.feeds.dali import make_dali_feed
        from tcbench.engine.feeds.modelled import MixedFeed

        return recipe.of(make_dali_feed, MixedFeed)
