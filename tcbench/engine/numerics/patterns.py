"""A learnable set of generated images. An image is the smooth random pattern of its class with a random shift, contrast
and noise. The images are the same on every machine."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BLUR = 1.2
"""The standard deviation, in pixels, of the blur that makes patterns smooth."""
_SHIFT = 2
"""The largest shift in each direction, in pixels."""
_PATTERN_SEED, _TRAIN_SEED, _TEST_SEED = 7, 1, 2


@dataclass(frozen=True)
class Images:
    """Images x of shape (N, 3, S, S) and labels t of shape (N,). Pixels are exact in float16, so that every dtype gets
    the same ones."""

    x: npt.NDArray[np.float32]
    t: npt.NDArray[np.int32]


def make(n_train: int, n_test: int, image_size: int, n_classes: int, noise: float) -> tuple[Images, Images]:
    """Return images for training and for testing. `noise` is the ratio of the noise's standard deviation to that of a
    pattern."""
    shape = (n_classes, 3, image_size, image_size)
    frequencies = np.fft.fftfreq(image_size)
    squared = frequencies[:, None] ** 2 + frequencies[None] ** 2
    blur = np.exp(-squared * (2 * np.pi * _BLUR) ** 2 / 2)  # the Fourier transform of a Gaussian
    raw = np.random.default_rng(_PATTERN_SEED).standard_normal(shape)
    patterns = np.fft.ifft2(np.fft.fft2(raw) * blur).real
    patterns /= patterns.std(axis=(1, 2, 3), keepdims=True)
    return _draw(patterns, n_train, noise, _TRAIN_SEED), _draw(patterns, n_test, noise, _TEST_SEED)


def _draw(patterns: npt.NDArray[np.float64], n: int, noise: float, seed: int) -> Images:
    """Draw n images of random classes: shifted patterns with random contrast and noise."""
    rng = np.random.default_rng(seed)
    n_classes, _, size, _ = patterns.shape
    t = rng.integers(0, n_classes, n).astype(np.int32)
    down, right = rng.integers(-_SHIFT, _SHIFT + 1, (2, n))
    rows = (np.arange(size)[None] - down[:, None]) % size
    columns = (np.arange(size)[None] - right[:, None]) % size
    x = patterns[
        t[:, None, None, None], np.arange(3)[None, :, None, None], rows[:, None, :, None], columns[:, None, None]
    ]
    x *= rng.uniform(0.5, 1.5, (n, 1, 1, 1))
    x += noise * rng.standard_normal(x.shape)
    return Images(x.astype(np.float16).astype(np.float32), t)
