# ruff: noqa: F403  (its names are those of its modules)
"""The operations that models are built from. All take Chainer Variables or arrays and return one Variable.

float32 and float64 are computed in their own precision. float16 is stored in 16 bits, computed and accumulated in
float32, and rounded once at an operation's output, as Tensor Cores do."""

from tcbench.engine.backends.chainer.ops.batch_norm import *
from tcbench.engine.backends.chainer.ops.bias import *
from tcbench.engine.backends.chainer.ops.concat import *
from tcbench.engine.backends.chainer.ops.convolution import *
from tcbench.engine.backends.chainer.ops.elementwise import *
from tcbench.engine.backends.chainer.ops.im2col import *
from tcbench.engine.backends.chainer.ops.linear import *
from tcbench.engine.backends.chainer.ops.loss import *
from tcbench.engine.backends.chainer.ops.one_to_one import *
