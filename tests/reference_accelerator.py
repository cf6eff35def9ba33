"""An accelerator that computes every piece of work with the plain references: whole training steps take the path they
take on a GPU, and their numbers can be looked at."""

from collections.abc import Callable
from typing import Any

import numpy as np
from reference import REFERENCE

from tcbench.engine.accelerators.tracing import TracingAccelerator
from tcbench.engine.work import Work


class ReferenceAccelerator(TracingAccelerator):
    """Fresh arrays are poisoned: whatever is read before it is written becomes NaN."""

    computes = True

    recording: list[tuple[Work, tuple[Any, ...]]] | None = None

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = super().empty(shape, dtype)
        array.fill(np.nan if array.dtype.kind == "f" else 113)
        return array

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = self.empty(shape, dtype)
        array[...] = 0
        return array

    def upload(self, host: Any) -> Any:
        array = self.empty(host.shape, host.dtype)
        array[...] = host
        return array

    def copy(self, source: Any, target: Any) -> None:
        super().copy(source, target)
        target[...] = source

    def download(self, array: Any) -> Any:
        return np.array(array)

    def prepare(self, work: Work, *arrays: Any) -> Callable[[], None]:
        trace = super().prepare(work, *arrays)
        if work.kind != "kernel":
            assert not any(array.ctypes.data % 16 for array in arrays), f"{work.name}: an operand is not aligned"

        def run() -> None:
            trace()
            if self.recording is None:
                REFERENCE[work.name](work, *arrays)
            else:
                self.recording.append((work, arrays))

        return run

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record as a GPU does: nothing is computed meanwhile, and every replay uses the same addresses."""
        self.recording = []
        run()
        recorded, self.recording = self.recording, None

        def replay() -> None:
            for work, arrays in recorded:
                REFERENCE[work.name](work, *arrays)

        return replay
