"""Work: one thing a device is asked to do, as a frozen description without arrays.

A convolution, a batch normalisation, a kernel: each is a class that says which operands it takes, in which order, how
many floating-point operations it needs and how many bytes it must move. Everything else derives from this: the
operations launch work, an accelerator turns it into plans and kernels, the tracing accelerator counts it, the forecast
looks for its plans on a GPU that is not there, and the tests compute it with NumPy.

Owns the descriptions. Standard library only: knows no accelerator, and no rung.
"""

from tcbench.engine.work.base import (
    HALVES,
    ITEM_BYTES,
    DType,
    Half,
    Kind,
    Layout,
    Math,
    Operand,
    Role,
    Work,
    shared,
    stored,
    wide,
)
from tcbench.engine.work.bias import AddBias, AddBiasRelu, BiasGradient
from tcbench.engine.work.columns import PutColumns, TakeColumns
from tcbench.engine.work.convolution import Conv2d, ConvDgrad, ConvDgradAdd, ConvFprop, ConvFpropStats, ConvWgrad
from tcbench.engine.work.dropout import DropoutBackward, DropoutForward
from tcbench.engine.work.im2col import Col2im, Im2col, placing, product
from tcbench.engine.work.kfac import BeginInverse, CholeskyInverse, DampFactors, EndInverse, KroneckerFactor
from tcbench.engine.work.loss import MeanLoss, SoftmaxCrossEntropyBackward, SoftmaxCrossEntropyForward
from tcbench.engine.work.lrn import LrnBackward, LrnForward
from tcbench.engine.work.norm import (
    After,
    BatchNormApply,
    BatchNormBackward,
    BatchNormCallBackward,
    BatchNormCallForward,
    BatchNormFinalize,
    BatchNormForward,
    Norm,
    reserve_bytes,
)
from tcbench.engine.work.pointwise import Add, AddRelu, Relu, ReluBackward
from tcbench.engine.work.pooling import (
    GlobalAverageBackward,
    GlobalAverageForward,
    MaxPoolBackward,
    MaxPoolForward,
    Pool,
    TiledAverageBackward,
    TiledAverageForward,
)
from tcbench.engine.work.update import (
    ALIGNMENT,
    CHUNK,
    GOOD_STEPS,
    OVERFLOWS,
    SCALE,
    SKIPPED,
    STATE_SIZE,
    AdjustScale,
    BatchedUpdate,
    CheckFinite,
    MomentumUpdate,
    PackGradients,
    Parameters,
    ToHalf,
    ToSingle,
    Unscale,
    WeightDecay,
)

__all__ = [
    "ALIGNMENT",
    "CHUNK",
    "GOOD_STEPS",
    "HALVES",
    "ITEM_BYTES",
    "OVERFLOWS",
    "SCALE",
    "SKIPPED",
    "STATE_SIZE",
    "Add",
    "AddBias",
    "AddBiasRelu",
    "AddRelu",
    "AdjustScale",
    "After",
    "BatchNormApply",
    "BatchNormBackward",
    "BatchNormCallBackward",
    "BatchNormCallForward",
    "BatchNormFinalize",
    "BatchNormForward",
    "BatchedUpdate",
    "BeginInverse",
    "BiasGradient",
    "CheckFinite",
    "CholeskyInverse",
    "Col2im",
    "Conv2d",
    "ConvDgrad",
    "ConvDgradAdd",
    "ConvFprop",
    "ConvFpropStats",
    "ConvWgrad",
    "DType",
    "DampFactors",
    "DropoutBackward",
    "DropoutForward",
    "EndInverse",
    "GlobalAverageBackward",
    "GlobalAverageForward",
    "Half",
    "Im2col",
    "Kind",
    "KroneckerFactor",
    "Layout",
    "LrnBackward",
    "LrnForward",
    "Math",
    "MaxPoolBackward",
    "MaxPoolForward",
    "MeanLoss",
    "MomentumUpdate",
    "Norm",
    "Operand",
    "PackGradients",
    "Parameters",
    "Pool",
    "PutColumns",
    "Relu",
    "ReluBackward",
    "Role",
    "SoftmaxCrossEntropyBackward",
    "SoftmaxCrossEntropyForward",
    "TakeColumns",
    "TiledAverageBackward",
    "TiledAverageForward",
    "ToHalf",
    "ToSingle",
    "Unscale",
    "WeightDecay",
    "Work",
    "placing",
    "product",
    "reserve_bytes",
    "shared",
    "stored",
    "wide",
]
