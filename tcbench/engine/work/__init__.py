# ruff: noqa: F403  (its names are those of its modules)
"""Work: one thing a device is asked to do, as a frozen description without arrays.

A convolution, a batch normalisation, a kernel: each is a class that says which operands it takes, in which order, how
many floating-point operations it needs and how many bytes it must move. Everything else derives from this: the
operations launch work, an accelerator turns it into plans and kernels, the tracing accelerator counts it, the forecast
looks for its plans on a GPU that is not there, and the tests compute it with NumPy.

Owns the descriptions. Standard library only: knows no accelerator, and no rung."""

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
