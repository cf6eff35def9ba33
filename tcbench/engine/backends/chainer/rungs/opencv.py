"""opencv: OpenCV decodes and resizes in place of Pillow, still in the step's own thread."""

from typing import Any

from tcbench.engine.feeds.rungs import OpenCvInput


class OpenCv(OpenCvInput):
    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.feeds.opencv import make_opencv_feed

        return recipe.of(make_opencv_feed)
