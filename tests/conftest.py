"""Runs before any test module: two workers with two BLAS threads each would wait for one another on two cores."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
