"""The public API for users' own training steps, described in docs/own-step.md."""

from tcbench.engine.backends.step import Step, step

__all__ = ["Step", "step"]
