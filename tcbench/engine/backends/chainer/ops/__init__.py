"""The operations that the model is built from. All take chainer Variables or arrays and return one Variable.

float32 and float64 are computed in their own precision. float16 is stored as float16, computed and accumulated in
float32, and rounded once at an op's output: what a Tensor Core does.
"""

from tcbench.engine.backends.chainer.ops.batch_norm import RunningStatistics, batch_norm, batch_norm_from_sums
from tcbench.engine.backends.chainer.ops.bias import bias
from tcbench.engine.backends.chainer.ops.concat import concatenate
from tcbench.engine.backends.chainer.ops.convolution import convolution_2d, convolution_2d_stats
from tcbench.engine.backends.chainer.ops.dropout import dropout
from tcbench.engine.backends.chainer.ops.elementwise import add, relu
from tcbench.engine.backends.chainer.ops.im2col import convolution_2d_im2col
from tcbench.engine.backends.chainer.ops.linear import linear
from tcbench.engine.backends.chainer.ops.loss import softmax_cross_entropy
from tcbench.engine.backends.chainer.ops.lrn import local_response_normalization
from tcbench.engine.backends.chainer.ops.pooling import (
    global_average_pooling_2d,
    max_pooling_2d,
    tiled_average_pooling_2d,
)

__all__ = [
    "RunningStatistics",
    "add",
    "batch_norm",
    "batch_norm_from_sums",
    "bias",
    "concatenate",
    "convolution_2d",
    "convolution_2d_im2col",
    "convolution_2d_stats",
    "dropout",
    "global_average_pooling_2d",
    "linear",
    "local_response_normalization",
    "max_pooling_2d",
    "relu",
    "softmax_cross_entropy",
    "tiled_average_pooling_2d",
]
