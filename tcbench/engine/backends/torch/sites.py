"""Sites, the places where a PyTorch step computes: the host, or a GPU. Their clock, their memory, and the way of a
feed's batch to them.

Two orders are kept on a GPU, as in `feeds.dali`: a batch has arrived before it is read (everything runs on PyTorch's
current stream, which waits for DALI's), and its memory is used again only when it has been read. A batch from the host
is copied through two pinned buffers, each with an event that says when its last copy is done, so that the host waits
for a copy only when it is two batches ahead; its place on the GPU is PyTorch's allocator's, which is in stream order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators.event_clock import EventClock
from tcbench.engine.clock import HostClock, peak_resident_bytes
from tcbench.engine.feeds import dali
from tcbench.engine.session import Clock

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images and labels (N,)."""

_CALIBRATION_CYCLES = 10_000_000
"""Some milliseconds: long beside a launch."""


class Site:
    """A place to compute: the processor, in this process. Tensors share the feed's memory. `backend`: PyTorch's name of
    what reduces tensors here over ranks."""

    backend = "gloo"
    clock: Clock

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.clock = HostClock()

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Held from build to end."""
        return contextlib.nullcontext()

    def arrive(self, x: Any, t: Any) -> Batch:
        """A feed's batch as tensors here, shape and dtype unchanged."""
        return torch.from_numpy(x), torch.from_numpy(t)

    def dali(self) -> dali.Placement:
        """The place where DALI decodes for a consumer here."""
        return dali.ON_CPU

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        """Bytes, and of what."""
        return peak_resident_bytes(), "process"

    def collectives(self) -> str:
        """The name and version of `backend` for people."""
        return self.backend


class GpuSite(Site):
    """One NVIDIA GPU, on PyTorch's current stream of it."""

    backend = "nccl"

    def __init__(self, index: int) -> None:
        if not torch.cuda.is_available():
            built_for = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
            raise SelectionError(
                f"PyTorch {torch.__version__} finds no GPU ({built_for}): uv sync --extra cuda13 --extra torch"
            )
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.current_stream(self.device)
        self.clock = EventClock(
            self._stream,
            lambda: torch.cuda.Event(enable_timing=True),
            lambda before, after: float(before.elapsed_time(after)),
            self._stall,
        )
        self._cycles_per_s = 0.0
        self._pinned = (_Pinned(self.device), _Pinned(self.device))

    def _stall(self, seconds: float) -> None:
        """PyTorch's own kernel that spins counts cycles, at a clock that the first call finds out."""
        if not self._cycles_per_s:
            torch.cuda._sleep(_CALIBRATION_CYCLES // 10)  # which loads it
            self.clock.mark()
            torch.cuda._sleep(_CALIBRATION_CYCLES)
            self.clock.mark()
            self._cycles_per_s = _CALIBRATION_CYCLES / self.clock.read()[-1]
        torch.cuda._sleep(round(seconds * self._cycles_per_s))

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with torch.cuda.device(self.device):
            torch.cuda.reset_peak_memory_stats()
            yield
            torch.cuda.synchronize()

    def arrive(self, x: Any, t: Any) -> Batch:
        if isinstance(x, torch.Tensor):
            return x, t
        self._pinned = self._pinned[::-1]
        return self._pinned[0].upload(x, t)

    def dali(self) -> dali.Placement:
        return dali.Placement(
            device_id=self.device.index,
            decoder="mixed",
            # By the CUDA Array Interface: see `tcbench.engine.feeds.dali.gpu_placement`.
            hand_over=lambda output: torch.as_tensor(output.as_tensor(), device=self.device),
            stream=self._stream,
            fence=lambda: _Fence(self._stream),
        )

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        """Bytes that PyTorch's allocator held."""
        return torch.cuda.max_memory_reserved(self.device), "device"

    def collectives(self) -> str:
        return f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"


class _Fence:
    """A point in a stream, as `feeds.dali` asks for it."""

    def __init__(self, stream: Any) -> None:
        self._event = torch.cuda.Event(blocking=True)
        self._event.record(stream)

    @property
    def done(self) -> bool:
        return bool(self._event.query())

    def synchronize(self) -> None:
        self._event.synchronize()


class _Pinned:
    """Page-locked host memory for one batch, and when its last copy to the device is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._batch: Batch | None = None
        self._copied = torch.cuda.Event()

    def upload(self, x: Any, t: Any) -> Batch:
        """Copies to the device, in stream order; waits only for this buffer's own last copy."""
        arrived = torch.from_numpy(x), torch.from_numpy(t)
        if self._batch is None:
            self._batch = arrived[0].pin_memory(), arrived[1].pin_memory()
        else:
            self._copied.synchronize()
            for pinned, source in zip(self._batch, arrived, strict=True):
                pinned.copy_(source)
        x_there, t_there = (pinned.to(self._device, non_blocking=True) for pinned in self._batch)
        self._copied.record()
        return x_there, t_there


def open_site(device: str) -> Site:
    """The site that "cpu" or "cuda:N" names. Raises SelectionError where PyTorch finds no GPU."""
    kind, _, index = device.partition(":")
    return Site() if kind == "cpu" else GpuSite(int(index or 0))
