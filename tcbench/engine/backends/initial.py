"""Initial weights, drawn once for every framework: the same seed gives all of them the same numbers."""

from __future__ import annotations

import numpy as np


def he_normal(shape: tuple[int, ...], fan_in: int, rng: np.random.RandomState) -> np.ndarray:
    """Normal with variance 2 / fan_in (He et al., "Delving Deep into Rectifiers", 2015, eq. 12).

    float32 whatever is stored later, so that every dtype starts from the same numbers.
    """
    return normal(shape, np.sqrt(2.0 / fan_in), rng)


def normal(shape: tuple[int, ...], std: float, rng: np.random.RandomState) -> np.ndarray:
    """Normal with this standard deviation, float32."""
    values: np.ndarray = rng.standard_normal(shape) * std
    return values.astype(np.float32)
