"""NumPy kernels: pure functions on arrays, without Chainer. Each does the work that its first argument describes: that
work's class says what it does."""
