"""opencv: OpenCV decodes and resizes in place of Pillow, still in the step's own thread."""

from typing import Any

from tcbench.engine.rung import Package, Parity, Requires, Rung


class OpenCv(Rung):
    name = "opencv"
    says = "input decoded by OpenCV in place of Pillow"
    requires = Requires(packages=(Package("cv2", "uv sync --extra opencv"),))
    conflicts = frozenset({"dali"})
    parity = Parity("input", pixels=3.0)
    source = "K. Uenishi, A Few Ways to Accelerate Deep Learning, 2019"

    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.feeds.opencv import make_opencv_feed

        return recipe.of(make_opencv_feed)
