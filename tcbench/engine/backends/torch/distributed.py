"""PyTorch's DistributedDataParallel between a model and a step: its buckets, reduced while backward runs.

DDP waits for its all-reduces at the end of backward. Here that wait is a phase of its own: a communication hook starts
the same all-reduce and hands the bucket back at once, and `allreduce` waits for what is under way. Gradients are views
into the buckets, so that nothing is copied after it.

Ranks begin with the same weights, by their seed, and DDP sends those of rank 0 to all. Buffers, which are the running
statistics of batch normalisation, stay each rank's own, as in ChainerMN."""

# DDP looks at its hook's annotations and wants types, not their names: nothing of __future__ here.

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
    """PyTorch's process group over a world's ranks. They meet at a port of rank 0's host that it takes for itself."""
    at, store = ("", 0), None
    if world.rank == 0:
        host = "127.0.0.1" if world.local_size == world.size else socket.gethostname()
        store = dist.TCPStore(host, 0, world.size, is_master=True, wait_for_workers=False)
        at = host, store.port
    host, port = world.bcast(at)
    store = store or dist.TCPStore(host, port, world.size, is_master=False)
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class DataParallel:
    """DDP around a model, within a process group. `model` is what a step calls. `allreduce` comes after backward: from
    then on gradients are means over all ranks."""

    overlaps = True  # with backward, always

    def __init__(self, model: torch.nn.Module, site: Site) -> None:
        self._under_way: list[Any] = []
        device_ids = None if site.device.index is None else [site.device.index]
        self.model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=device_ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        self.model.register_comm_hook(None, self._begin)
        self._devices = [site.device] if device_ids else []
        self.engine = f"PyTorch DistributedDataParallel over {site.collectives()}"
        self.reduced_bytes = sum(p.numel() * p.element_size() for p in model.parameters())

    def _begin(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        self._under_way.append(dist.all_reduce(gradients.div_(dist.get_world_size()), async_op=True))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=self._devices)
        done.set_result(gradients)
        return done

    def allreduce(self) -> bool:
        """Wait for what backward has begun: on a GPU its stream does, not the host."""
        for work in self._under_way:
            work.wait()
        self._under_way.clear()
        return True
