"""All operations in plain NumPy: the reference for other implementations, and the fallback on machines without oneDNN.
Each module registers its operations in `operands.OPERATIONS`."""

from tcbench.engine.accelerators.cpu.reference import convolution, kfac, layers, norm, pooling, update

__all__ = ["convolution", "kfac", "layers", "norm", "pooling", "update"]
