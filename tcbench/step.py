"""A training step of one's own as a session. Public, see docs/own-step.md; this name stays."""

from tcbench.engine.backends.step import Step, step

__all__ = ["Step", "step"]
