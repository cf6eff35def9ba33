"""The accelerator that writes down what it is asked to do refuses what a device would compute garbage of."""

import numpy as np
import pytest

from tcbench.engine.accelerators.tracing import check
from tcbench.engine.work import Relu

RELU = Relu(6, "float32")
GOOD = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((GOOD,), "relu: takes 2 arrays, got 1"),
        ((GOOD[:1], GOOD), r"relu: x is \(1, 3\) float32, expected \(6,\) float32"),
        ((GOOD, GOOD.astype(np.float16)), r"relu: y is \(2, 3\) float16, expected \(6,\) float32"),
        ((np.zeros((3, 2), np.float32).T, GOOD), r"relu: x is \(2, 3\) float32, expected \(6,\) float32"),
    ],
    ids=["too few", "size", "dtype", "transposed"],
)
def test_arrays_that_a_work_does_not_take_are_refused_by_name(arrays, message):
    check(RELU, (GOOD, GOOD))
    with pytest.raises(ValueError, match=f"^{message}$"):
        check(RELU, arrays)
