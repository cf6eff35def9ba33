"""Sites, the devices on which a PyTorch step computes: their clock, their memory, and how batches get there.

On a GPU, as in `feeds.dali`, a batch is complete before it is read (everything runs on PyTorch's current stream, which
waits for DALI's), and its memory is reused only after it has been read. Batches from the host are copied through two
pinned buffers. An event marks the end of each copy, so the host waits only when it is two batches ahead. Memory on the
GPU comes from PyTorch's allocator, which works in stream order."""

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
"""A tuple of images and labels (N,)."""

_CALIBRATION_CYCLES = 10_000_000
"""A few milliseconds, which is long compared with a launch."""


class Site:
    """The host CPU as a site, and the base class of GPU sites. Tensors share the feed's memory. `backend` is PyTorch's
    name of the library that reduces tensors over ranks."""

    backend = "gloo"
    clock: Clock

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.clock = HostClock()

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Return the context that a session holds from build to close."""
        return contextlib.nullcontext()

    def upload(self, x: Any, t: Any) -> Batch:
        """Return a feed's batch as tensors at this site, with shape and dtype unchanged."""
        return torch.from_numpy(x), torch.from_numpy(t)

    def dali(self) -> dali.Placement:
        """Return the placement of a DALI pipeline for this site."""
        return dali.ON_CPU

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        """Return the peak memory in bytes, and whether it is the process's or the device's."""
        return peak_resident_bytes(), "process"

    def collectives(self) -> str:
        """Return the name and version of the library that reduces tensors, for display."""
        return self.backend


class GpuSite(Site):
    """An NVIDIA GPU as a site, on PyTorch's current stream."""

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
        """Keep the GPU busy with PyTorch's spin kernel, which counts cycles; the first call measures their rate."""
        if not self._cycles_per_s:
            torch.cuda._sleep(_CALIBRATION_CYCLES // 10)  # loads the kernel
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

    def upload(self, x: Any, t: Any) -> Batch:
        """Copy a batch from the host to the GPU through one of two pinned buffers, in turn. Tensors are returned as
        they are, because DALI's are on the GPU already."""
        if isinstance(x, torch.Tensor):
            return x, t
        self._pinned = self._pinned[::-1]
        return self._pinned[0].upload(x, t)

    def dali(self) -> dali.Placement:
        """Return the placement of a DALI pipeline on this GPU, whose batches become tensors without a copy."""
        return dali.Placement(
            device_id=self.device.index,
            decoder="mixed",
            # Uses the CUDA Array Interface; see `tcbench.engine.feeds.dali.gpu_placement`.
            hand_over=lambda output: torch.as_tensor(output.as_tensor(), device=self.device),
            stream=self._stream,
            fence=lambda: _Fence(self._stream),
        )

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        """Return the most bytes that PyTorch's allocator has reserved."""
        return torch.cuda.max_memory_reserved(self.device), "device"

    def collectives(self) -> str:
        return f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"


class _Fence:
    """A point in a stream (see `feeds.dali.Fence`)."""

    def __init__(self, stream: Any) -> None:
        self._event = torch.cuda.Event(blocking=True)
        self._event.record(stream)

    @property
    def done(self) -> bool:
        return bool(self._event.query())

    def synchronize(self) -> None:
        self._event.synchronize()


class _Pinned:
    """A page-locked host buffer for one batch, with an event at the end of its last copy to the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._batch: Batch | None = None
        self._copied = torch.cuda.Event()

    def upload(self, x: Any, t: Any) -> Batch:
        """Copy a batch to the device in stream order. Waits only for the last copy from this buffer."""
        host = torch.from_numpy(x), torch.from_numpy(t)
        if self._batch is None:
            self._batch = host[0].pin_memory(), host[1].pin_memory()
        else:
            self._copied.synchronize()
            for pinned, source in zip(self._batch, host, strict=True):
                pinned.copy_(source)
        device_x, device_t = (pinned.to(self._device, non_blocking=True) for pinned in self._batch)
        self._copied.record()
        return device_x, device_t


def open_site(device: str) -> Site:
    """Return the site for the device "cpu" or "cuda:N". Raises SelectionError if PyTorch finds no GPU."""
    kind, _, index = device.partition(":")
    return Site() if kind == "cpu" else GpuSite(int(index or 0))
