"""Every kernel on a GPU, through the live loader, on the cases that test_kernels.py tries on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine.accelerators.cuda.kernels.cases import Array, Case, all_cases, check, inputs, run

from tcbench.engine.accelerators.cuda.kernels.load import Kernels

pytestmark = pytest.mark.gpu

CASES = all_cases()
GUARD_BYTES = 64
GUARD = 0xA7


class OnGpu:
    """A copy in device memory between two guards, 16-byte aligned or, if `odd`, one value past it."""

    def __init__(self, array: Array, odd: bool) -> None:
        import cupy

        self._dtype = array.dtype
        self._begin = GUARD_BYTES + (array.itemsize if odd else 0)
        self._end = self._begin + array.nbytes
        host = np.full(self._end + GUARD_BYTES, GUARD, "uint8")
        host[self._begin : self._end] = array.view("uint8")
        self._memory = cupy.asarray(host)
        assert self._memory.data.ptr % 16 == 0

    @property
    def address(self) -> int:
        return int(self._memory.data.ptr) + self._begin

    def contents(self) -> Array:
        host: Array = self._memory.get()
        around = np.concatenate([host[: self._begin], host[self._end :]])
        assert (around == GUARD).all(), "written out of bounds"
        return host[self._begin : self._end].copy().view(self._dtype)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    import cupy

    return Kernels(int(cupy.cuda.Device().compute_capability))


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_kernel_equals_reference_on_a_gpu(case: Case, kernels: Kernels) -> None:
    import cupy

    given = inputs(case)
    with cupy.cuda.Stream(non_blocking=True) as stream:

        def launch(*placed: Any) -> None:
            stream.synchronize()
            kernels.prepare(case.work, case.launch)(*(memory.address for memory in placed))
            stream.synchronize()

        check(case, given, run(case, given, OnGpu, launch))
