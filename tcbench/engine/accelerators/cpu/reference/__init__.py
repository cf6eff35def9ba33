"""NumPy kernels: pure functions on arrays, without Chainer."""
