"""The rung `opencv`: OpenCV decodes and resizes instead of Pillow, in the same thread as the step."""

from typing import Any

from tcbench.engine.feeds.rungs import OpenCvInput


class OpenCv(OpenCvInput):
    """Input by OpenCV."""

    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.feeds.opencv import make_opencv_feed

        return recipe.with_source(make_opencv_feed)
