"""The module `tcbench.step` under its name in tcbench 0.1."""

from tcbench.step import Step, step

__all__ = ["Step", "step"]
