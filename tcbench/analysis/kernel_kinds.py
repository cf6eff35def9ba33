"""The kind of work that a GPU kernel does, told from its name. Pure functions.

The rules are the words that libraries of kernels use for operations, not names of kernels: those of PyTorch, cuDNN,
cuBLAS, CUTLASS, FlashAttention, Apex, FBGEMM, Triton, MIOpen, rocBLAS, Composable Kernel and XLA.
"""

import re
from functools import cache
from typing import Literal

from tcbench.analysis.kernel_names import signature

KernelKind = Literal[
    "matmul",
    "convolution",
    "attention",
    "normalisation",
    "elementwise",
    "reduction",
    "optimizer",
    "transpose",
    "embedding",
    "communication",
    "copy",
    "other",
]
"""- `matmul`: products of matrices and vectors, parts of them (split-k sums) included.
- `normalisation`: batch, layer, group and RMS norm, and softmax outside of attention, also where more is fused to it.
- `elementwise`: arithmetic per element, casts to 8 bits and random numbers included.
- `reduction`: sums, maxima, losses, pooling, scans and sorts.
- `transpose`: changes of the memory layout that have a kernel of their own.
- `embedding`: look-ups by index and their gradients.
- `copy`: copies, casts by copy, concatenation and fills.
- `other`: no rule knows the kernel.
"""

_RULES: tuple[tuple[KernelKind, str], ...] = (
    (
        "communication",
        r"nccl|rccl|nvshmem|oneccl|cross_device_reduce|^(?!triton_)[^<]*(?<![a-z])all_?(reduce|gather|to_?all)",
    ),
    # TorchInductor's names tell the pattern (for each, reduction, pointwise), then the fused operators.
    ("optimizer", r"^triton_for_"),
    ("normalisation", r"^triton_(red|per)_.*(norm|rsqrt|softmax|var_mean)"),
    ("reduction", r"^triton_(red|per)_"),
    ("transpose", r"^triton_poi_fused_(_?(unsafe_view|clone|transpose|permute|view|contiguous|slice|t)_)+\d*$"),
    ("elementwise", r"^triton_poi_|loop_\w*fusion|rotary|\brope|_rope"),
    ("copy", r"(reshape_and|concat_and|store|append|write|copy)_?\w*cache"),
    ("attention", r"attention|attn|fmha|flash(?!infer)|sdpa|\bmha_|\bsage_|(decode|prefill)\w*KV|^bwd_kernel_d[kq]"),
    ("optimizer", r"multi_tensor(?!.*copy)|(?<!h)adam|\bsgd|_sgd|lamb(?!da)|rmsprop|foreach"),
    (
        "embedding",
        r"embedding|fbgemm_gpu(?!.*(fp8|quant))|embs?_kernel|^[^<]*(gather|scatter|index_?(select|element|put))",
    ),
    (
        "transpose",
        r"^[^<]*((?<!conv_)(?<!conv)transpose|permute|nchw_?(to|2)_?nhwc|nhwc_?(to|2)_?nchw|tensorTransform)",
    ),
    (
        "convolution",
        r"conv(?!ert)|[fdbw]prop|dgrad|wgrad|winograd|implicit_?gemm|igemm_(fwd|bwd|wrw)|im2d?2?col|col2im|fft2d_"
        r"|cudnn\w*gemm|(gemm|xmma|884|816|688)\w*cudnn|[sh]cudnn_",
    ),
    (
        "matmul",
        r"(?<!fb)gemm|gemv|nvjet|matmul|cublas|cijk_|wmma|\bb?mm_|_b?mm_|addmm|epilogue::|split_?k_?reduce|xmma",
    ),
    (
        "normalisation",
        r"(batch|layer|group|instance|rms|weight)_?norm|(?<!re)normaliz|_norm_|softmax|welford|moments|gamma_?beta"
        r"|\bbn_|_bn_|invstd|internal_?gradients|fused_?params",
    ),
    ("reduction", r"reduc|arg_?(max|min)|pool|loss|entropy|top_?k|sort|scan|cumsum|cub::|rocprim::|histogram"),
    ("copy", r"copy|cat_?array|concat|mem(set|cpy)|(?<!pre)fill"),
    (
        "elementwise",
        r"ele?m(ent)?_?wise|pointwise|functor|activation|relu|gelu|silu|swiglu|act_and_mul|sigmoid|tanh|dropout|quant|fp8"
        r"|op\w*tensor|tensorop|bias|neuron|upsample|distribution|eigenmeta|_add_|_mul_|clamp|cast|(lstm|gru)_cell",
    ),
)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _RULES)


@cache
def kernel_kind(name: str) -> KernelKind:
    """Return the kind of a kernel: that of the first rule that matches its name and template arguments."""
    text = signature(name)
    return next((kind for kind, pattern in _PATTERNS if pattern.search(text)), "other")


_TF32 = re.compile(r"tf32|tensorop_s1688(?!.*16_)", re.IGNORECASE)
_LOW_PRECISION = re.compile(
    r"fp?16|half|bfloat|[hsi](884|16816|1688)(?!.*tf32)|_[BH](B|H|_B|_H)|fp8|int8|e4m3", re.IGNORECASE
)
_FP32 = re.compile(r"sgemm|scudnn|simt_s|f32f32|_S_?B_|<float|, float", re.IGNORECASE)


def matrix_precision(name: str) -> Literal["fp32", "tf32"] | None:
    """Return the precision of a matrix kernel that has a faster one below it; None if it has a lower precision
    already, or if its name does not tell."""
    if _TF32.search(name):
        return "tf32"
    return "fp32" if _FP32.search(name) and not _LOW_PRECISION.search(name) else None
