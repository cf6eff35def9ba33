"""The frozen facts that a config's parts are built from. Layout and dtype travel here, so that no rung and no op
asks which other rungs are there."""

from dataclasses import dataclass
from typing import get_args

import ml_dtypes  # noqa: F401  (with it NumPy knows bfloat16 by name)
import numpy as np
from msgspec import UNSET, UnsetType

from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.work import DType, Layout, Math


@dataclass(frozen=True)
class TensorSpec:
    """The storage of activations. NCHW: arrays shaped (N, C, H, W), filters (K, C, R, S). NHWC: arrays shaped (N, H, W,
    C), filters (K, R, S, C). Both C-contiguous. `math`: how float32 convolutions and the classifier compute on a GPU:
    in float32, or with inputs rounded to TensorFloat-32."""

    layout: Layout = "NCHW"
    dtype: DType = "float32"
    math: Math = "strict"

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DType):
            raise ValueError(f"activations are stored as {' or '.join(get_args(DType))}, not as {self.dtype}")

    def stored(self, x: np.ndarray) -> np.ndarray:
        """Maps (..., C, H, W) as they are stored."""
        return np.ascontiguousarray(np.moveaxis(x, -3, -1) if self.layout == "NHWC" else x, dtype=self.dtype)


@dataclass(frozen=True)
class FeedSpec:
    """A feed's batches: of `batch_size` square images of `image_size` pixels, stored as `tensor` says, with int32
    labels. `images` is None for one synthetic batch kept in memory. `augment` False means centre crop, no mirror and
    file order, for comparing feeds with each other. `images_per_s`: the rate of decoding, where that is modelled.
    `hw_decoder_load`: the share of the images that DALI gives to a GPU's JPEG decoder; unset: what DALI does
    unasked."""

    images: ImageFolder | None
    batch_size: int
    image_size: int
    n_classes: int
    tensor: TensorSpec
    seed: int
    threads: int
    augment: bool = True
    images_per_s: float | None = None
    hw_decoder_load: float | UnsetType = UNSET
