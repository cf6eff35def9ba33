"""Operations compute on the processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tcbench.accelerators import protocol as accelerators
from tcbench.accelerators.cpu.numpy.accelerator import NumpyAccelerator


@pytest.fixture(autouse=True)
def _on_the_processor() -> Iterator[None]:
    accelerator = NumpyAccelerator(threads=2)
    with accelerator.enter(), accelerators.use(accelerator):
        yield
