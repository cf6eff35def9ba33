"""A benchmark and profiler for neural network training."""

__version__ = "0.1.0"
