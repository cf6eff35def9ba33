"""The precision of float32 convolutions and matrix products on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch


@contextlib.contextmanager
def float32_math(math: Literal["ieee", "tf32"]) -> Iterator[None]:
    """In float32, or with inputs rounded to TensorFloat-32.

    These two setters are the ones that keep PyTorch's older and newer flags in step; setting one family alone makes
    reading the other an error.
    """
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if math == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = math == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
