"""A GPU's ceilings: a product in each precision that it has and a copy, at the rate of the best turn."""

from typing import Any, Literal

import numpy as np
import pytest
from reference_accelerator import ReferenceAccelerator

from tcbench.engine.accelerators.ceilings import products
from tcbench.engine.accelerators.cuda.ceilings import measure_on
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuProperties


class Clock:
    """Every interval takes a second longer than the one before, the first a second."""

    of: Literal["device"] = "device"
    marks = 0

    def mark(self) -> None:
        self.marks += 1

    def read(self) -> tuple[float, ...]:
        return tuple(float(i + 1) for i in range(self.marks - 1))


def test_each_precision_is_a_product_of_the_same_size() -> None:
    assert list(products(70)) == ["fp32", "fp16"]
    works = products(90, 256)
    assert list(works) == ["fp32", "fp16", "tf32"]
    assert {work.flops for work in works.values()} == {2 * 256**3}


def test_rates_are_those_of_the_best_turn() -> None:
    accelerator = ReferenceAccelerator(GpuProperties("A GPU", 90, 2, 1 << 30))
    measured = measure_on(accelerator, Clock(), size=64, n_bytes=1000, rounds=3)
    flops = 2 * 64**3
    assert measured["flops_s"] == {"fp32": flops / 1, "fp16": flops / 2, "tf32": flops / 3}
    assert measured["bandwidth_bytes_s"] == pytest.approx(2 * 1000 / 4)
    assert measured["device_name"] == "A GPU"


def test_the_product_and_the_copy_are_of_random_values() -> None:
    """A GPU takes less power for zeros, and then reaches a clock that it does not reach in training."""
    seen: dict[str, list[np.ndarray]] = {}

    class Looks(ReferenceAccelerator):
        def launch(self, work: Work, *arrays: Any) -> None:
            super().launch(work, *arrays)
            seen[f"{work.operands[0].dtype}"] = list(arrays)

        def copy(self, source: Any, target: Any) -> None:
            super().copy(source, target)
            seen["copy"] = [source, target]

    measure_on(Looks(GpuProperties("A GPU", 90, 2, 1 << 30)), Clock(), size=64, n_bytes=1000, rounds=1)
    assert set(seen) == {"float32", "float16", "copy"}
    for kind, arrays in seen.items():
        for array in arrays:
            assert len(np.unique(array)) > 0.2 * min(array.size, 256), kind
    assert np.array_equal(*seen["copy"])


@pytest.mark.gpu
def test_a_gpus_tensor_cores_are_faster_than_its_other_units() -> None:
    from tcbench.engine.accelerators.cuda.ceilings import measure

    measured = measure(0)
    assert measured["flops_s"]["fp16"] > 2 * measured["flops_s"]["fp32"]
    assert measured["bandwidth_bytes_s"] > 1e11
