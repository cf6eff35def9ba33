"""Every piece of work that a processor does, in plain NumPy: what a machine without oneDNN computes with, and what all
other implementations are checked against. Each module's operations register themselves in `operands.OPERATIONS`."""

from tcbench.engine.accelerators.cpu.reference import convolution, kfac, layers, norm, pooling, update

__all__ = ["convolution", "kfac", "layers", "norm", "pooling", "update"]
