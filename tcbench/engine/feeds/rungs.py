"""Declarations of the input rungs, which all frameworks share; each framework adds its own `feed` stage."""

from tcbench.core.packages import Package
from tcbench.engine.rung import Parity, Requires, Rung

INPUT_PACKAGES = ("Pillow", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "opencv-python-headless", "nvtx")
"""Distributions of the input and of the profiler's ranges, which every backend records."""


class DaliInput(Rung):
    """Input decoded, augmented and prefetched by NVIDIA DALI."""

    name = "dali"
    says = "input by NVIDIA DALI, prefetched in its own threads"
    requires = Requires(packages=(Package("nvidia.dali", "uv sync (x86-64 Linux only)"),))
    conflicts = frozenset({"opencv"})
    parity = Parity("input", pixels=1.0)
    source = "talk, slides 19 to 22"


class OpenCvInput(Rung):
    """Input decoded by OpenCV."""

    name = "opencv"
    says = "input decoded by OpenCV instead of Pillow"
    requires = Requires(packages=(Package("cv2", "uv sync --extra opencv"),))
    conflicts = frozenset({"dali"})
    parity = Parity("input", pixels=3.0)
    source = "K. Uenishi, A Few Ways to Accelerate Deep Learning, 2019"
