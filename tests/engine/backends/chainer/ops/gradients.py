"""Gradients against finite differences in float64, and one layout against the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.engine.backends.chainer.compat import chainer

LAYOUTS = ("NCHW", "NHWC")


def to_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """Maps (N, C, H, W) as the layout stores them; anything else as it is."""
    last = layout == "NHWC" and array.ndim == 4
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if last else array


def from_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """The reverse."""
    return array.transpose(0, 3, 1, 2) if layout == "NHWC" and array.ndim == 4 else array


def check_gradients(operate: Callable[..., Any], *inputs: np.ndarray, rtol: float = 1e-6, step: float = 1e-5) -> None:
    """`operate` of Variables of these float64 arrays: the gradient of each against a difference along a random line."""
    rng = np.random.default_rng(3)
    variables = [chainer.Variable(array.copy()) for array in inputs]
    y = operate(*variables)
    gy = rng.standard_normal(y.shape)
    y.grad = gy
    y.backward()
    for place, variable in enumerate(variables):
        line = rng.standard_normal(variable.shape)

        def value(step: float, place: int = place, line: np.ndarray = line) -> float:
            moved = [array.copy() for array in inputs]
            moved[place] += step * line
            return float((operate(*map(chainer.Variable, moved)).array * gy).sum())

        slope = (value(step) - value(-step)) / (2 * step)
        np.testing.assert_allclose(slope, (variable.grad * line).sum(), rtol=rtol, atol=1e-6)


def run(operate: Callable[..., Any], *inputs: np.ndarray, layout: str) -> list[np.ndarray]:
    """y and the gradients, in NCHW and float64, of arrays that are given in NCHW; gy is the same for every layout."""
    variables = [chainer.Variable(to_layout(array.copy(), layout)) for array in inputs]
    y = operate(*variables, layout=layout)
    gy = np.random.default_rng(4).standard_normal(from_layout(y.array, layout).shape).astype(y.dtype)
    y.grad = to_layout(gy, layout)
    y.backward()
    arrays = [y.array, *(variable.grad for variable in variables)]
    return [from_layout(array, layout).astype(np.float64) for array in arrays]
