"""Every kernel on a GPU, through the live loader, on the cases that test_kernels.py tries on the CPU."""

from typing import Any

import pytest
from engine.accelerators.cuda.kernels.cases import Array, Case, Guarded, all_cases, check, inputs, run

from tcbench.engine.accelerators.cuda.kernels.load import Kernels

pytestmark = pytest.mark.gpu

CASES = all_cases()


class OnGpu(Guarded):
    """The same in device memory."""

    def __init__(self, array: Array, odd: bool) -> None:
        import cupy

        super().__init__(array, odd)
        self._on_device = cupy.asarray(self._memory)
        assert self.address % 16 == (array.itemsize % 16 if odd else 0)

    @property
    def address(self) -> int:
        return int(self._on_device.data.ptr) + super().address - int(self._memory.ctypes.data)

    def contents(self) -> Array:
        self._memory[:] = self._on_device.get()
        return super().contents()


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    import cupy

    return Kernels(int(cupy.cuda.Device().compute_capability), lambda: int(cupy.cuda.get_current_stream().ptr))


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_kernel_equals_reference_on_a_gpu(case: Case, kernels: Kernels) -> None:
    import cupy

    arrays = inputs(case)
    with cupy.cuda.Stream(non_blocking=True) as stream:

        def launch(*placed: Any) -> None:
            stream.synchronize()
            kernels.prepare(case.work, case.launch)(*(memory.address for memory in placed))
            stream.synchronize()

        check(case, arrays, run(case, arrays, OnGpu, launch))
