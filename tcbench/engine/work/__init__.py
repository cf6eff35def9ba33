# ruff: noqa: F403  (the package re-exports the names of its modules)
"""Descriptions of the operations that a device computes: frozen dataclasses without arrays.

Each operation (a convolution, a batch normalisation, a kernel) is a subclass of `Work`. It declares its operands and
their order, its floating-point operations and the bytes that it must move. Operations of a backend launch work,
accelerators turn it into plans and kernels, the tracing accelerator counts it, `forecast` looks up its plans for a GPU
that is absent, and the tests compute it with NumPy.

This package uses the standard library only. It does not depend on accelerators or rungs."""

from tcbench.engine.work.base import *
from tcbench.engine.work.bias import *
from tcbench.engine.work.columns import *
from tcbench.engine.work.convolution import *
from tcbench.engine.work.dropout import *
from tcbench.engine.work.im2col import *
from tcbench.engine.work.kfac import *
from tcbench.engine.work.loss import *
from tcbench.engine.work.lrn import *
from tcbench.engine.work.norm import *
from tcbench.engine.work.pointwise import *
from tcbench.engine.work.pooling import *
from tcbench.engine.work.update import *
