"""Data parallelism by PyTorch's DistributedDataParallel (DDP), whose buckets are reduced while backward runs.

DDP itself waits for its all-reduces at the end of backward. Here the wait is a phase of its own: a communication hook
starts the same all-reduce and returns the bucket at once, and `allreduce` waits for the pending ones. Gradients are
views into the buckets, so nothing has to be copied afterwards.

The ranks start with the same weights, because they have the same seed, and because DDP broadcasts those of rank 0.
Buffers (the running statistics of batch normalisation) stay separate on each rank, as in ChainerMN."""

# No `from __future__ import annotations`: DDP checks that its hook's annotations are types, not strings.

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from tcbench.engine.backends.torch.sites import Site
from tcbench.engine.world import World


@contextlib.contextmanager
def process_group(world: World, backend: str) -> Iterator[None]:
    """Hold PyTorch's process group over a world's ranks. They connect through a free port of rank 0's host."""
    address, store = ("", 0), None
    if world.rank == 0:
        host = "127.0.0.1" if world.local_size == world.size else socket.gethostname()
        store = dist.TCPStore(host, 0, world.size, is_master=True, wait_for_workers=False)
        address = host, store.port
    host, port = world.bcast(address)
    store = store or dist.TCPStore(host, port, world.size, is_master=False)
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class DataParallel:
    """DDP around a model; it needs a process group.

    A step calls `model`, and `allreduce` after backward; then gradients are means over all ranks."""

    overlaps = True  # DDP always reduces during backward

    def __init__(self, model: torch.nn.Module, site: Site) -> None:
        self._pending: list[Any] = []
        device_ids = None if site.device.index is None else [site.device.index]
        self.model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=device_ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        self.model.register_comm_hook(None, self._begin)
        self._devices = [site.device] if device_ids else []
        self.engine = f"PyTorch DistributedDataParallel over {site.collectives()}"
        self.reduced_bytes = sum(p.numel() * p.element_size() for p in model.parameters())

    def _begin(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start a bucket's all-reduce and return the bucket without waiting (DDP's communication hook)."""
        gradients = bucket.buffer()
        self._pending.append(dist.all_reduce(gradients.div_(dist.get_world_size()), async_op=True))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=self._devices)
        done.set_result(gradients)
        return done

    def allreduce(self) -> bool:
        """Wait for the pending all-reduces; on a GPU the stream waits, not the host. Returns True: update now."""
        for work in self._pending:
            work.wait()
        self._pending.clear()
        return True
