"""Frozen descriptions of a config's tensors and batches.

Layout and dtype are passed on in them, so that no rung or operation has to ask which other rungs are present."""

from dataclasses import dataclass
from typing import get_args

import ml_dtypes  # noqa: F401  (with it NumPy knows bfloat16 by name)
import numpy as np
from msgspec import UNSET, UnsetType

from tcbench.core.errors import DataError
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.work import DType, Layout, Math


@dataclass(frozen=True)
class TensorSpec:
    """The storage format of activations.

    NCHW: activations (N, C, H, W) and filters (K, C, R, S). NHWC: activations (N, H, W, C) and filters (K, R, S, C).
    All are C-contiguous. `math` says whether a GPU computes float32 convolutions and the classifier in float32, or with
    inputs rounded to TensorFloat-32."""

    layout: Layout = "NCHW"
    dtype: DType = "float32"
    math: Math = "strict"

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DType):
            raise ValueError(f"activations are stored as {' or '.join(get_args(DType))}, not as {self.dtype}")

    def stored(self, x: np.ndarray) -> np.ndarray:
        """Return maps (..., C, H, W) in this layout and dtype."""
        return np.ascontiguousarray(np.moveaxis(x, -3, -1) if self.layout == "NHWC" else x, dtype=self.dtype)


@dataclass(frozen=True)
class FeedSpec:
    """A description of a feed's batches: `batch_size` square images of `image_size` pixels with int32 labels.

    - `images`: None for one synthetic batch kept in memory.
    - `augment`: False for a centre crop, no mirroring and file order, to compare feeds with each other.
    - `images_per_s`: the decoding rate, if decoding is modelled.
    - `hw_decoder_load`: the share of images that DALI gives to a GPU's JPEG decoder; unset for DALI's default."""

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

    def required_images(self) -> ImageFolder:
        """Return the images, for a feed that reads files. Raises DataError if there are none."""
        if self.images is None or not self.images.files:
            raise DataError("this feed reads JPEG files and got none: use '--data PATH', or the synthetic feed")
        return self.images
