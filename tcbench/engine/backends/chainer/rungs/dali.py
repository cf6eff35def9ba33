"""The rung `dali`: NVIDIA DALI decodes and augments in its own threads during the previous step."""

from typing import Any

from tcbench.engine.feeds.rungs import DaliInput


class Dali(DaliInput):
    """Input by NVIDIA DALI."""

    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.feeds.dali import make_dali_feed
        from tcbench.engine.feeds.modelled import MixedFeed

        return recipe.with_source(make_dali_feed, MixedFeed)
