"""Input with modelled decoding, for simulated devices: no image is read, and decoding uses no CPU core.

A host with two cores can thus stand for one with twenty. The user sets the decoding rate (`--data modelled:RATE`). Only
decoding is modelled; the rest of the input work is carried out:

- The framework's own input and `opencv`: worker processes would decode; the training thread stacks the images into a
  batch, which is copied to the device.
- `dali`: host threads would read and Huffman-decode; the device launches the rest ("mixed" decoding)."""

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcbench.engine.accelerators.protocol import current
from tcbench.engine.feeds.base import Feed, scaled_shape
from tcbench.engine.feeds.dali import PREFETCH_DEPTH
from tcbench.engine.feeds.spec import FeedSpec
from tcbench.engine.work import DType, Work, stored
from tcbench.engine.work.base import Array, reads, writes

PICTURE = (375, 500)
"""Height and width in pixels of most ImageNet files. They are 4:2:0, with half as many chroma values as pixels."""

_WORKERS_DEPTH = 1
"""The number of batches that worker processes prefetch, as in Chainer's MultiprocessIterator by default."""


class Decoder:
    """A simulated decoder that takes `batch_ns` per batch and works ahead until `depth` batches are ready. `note` is
    called with the times at which a batch's decoding begins and ends (`time.perf_counter_ns`)."""

    def __init__(
        self,
        batch_ns: int,
        depth: int,
        note: Callable[[int, int], None] = lambda _begin_ns, _end_ns: None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._batch_ns = batch_ns
        self._note = note
        self._now_ns = now_ns
        self._ends_ns: deque[int] = deque()
        self._last_ns = now_ns()
        for _ in range(depth):
            self._begin(self._last_ns)

    def take(self) -> None:
        """Wait until the next batch is decoded, and start another one in its place."""
        ready_ns = self._ends_ns.popleft()
        while (left_ns := ready_ns - self._now_ns()) > 0:
            time.sleep(left_ns * 1e-9)
        self._begin(self._now_ns())

    def _begin(self, free_ns: int) -> None:
        """Schedule a batch: decoding begins when the decoder is free and, from `free_ns` on, a place in the queue."""
        begin_ns = max(self._last_ns, free_ns)
        self._last_ns = begin_ns + self._batch_ns
        self._ends_ns.append(self._last_ns)
        self._note(begin_ns, self._last_ns)


def _batch_ns(spec: FeedSpec) -> int:
    """Return the decoding time of one batch in nanoseconds."""
    assert spec.images_per_s is not None
    return round(spec.batch_size / spec.images_per_s * 1e9)


class WorkersFeed(Feed):
    """Batches that `next` stacks from single images in host memory, as worker processes deliver them."""

    def __init__(self, spec: FeedSpec) -> None:
        size = spec.image_size
        rng = np.random.default_rng(spec.seed)
        shape = stored(spec.tensor.layout, 1, 3, size, size)[1:]
        self._examples = [np.ones(shape, spec.tensor.dtype) for _ in range(spec.batch_size)]
        self._labels = rng.integers(0, spec.n_classes, spec.batch_size, dtype=np.int32)
        self._decoder = Decoder(_batch_ns(spec), _WORKERS_DEPTH)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        self._decoder.take()
        return np.stack(self._examples), np.array(self._labels)


@dataclass(frozen=True)
class Stage(Work):
    """One stage of the device's input work, named by `does`. It reads one array and writes another."""

    name = "input"
    roles = reads("source") | writes("result")
    does: str
    source: Array
    result: Array

    def array(self, name: str) -> Array:
        array: Array = getattr(self, name)
        return array


def stages(batch_size: int, image_size: int, dtype: DType) -> tuple[Stage, ...]:
    """Return the stages that follow Huffman decoding in DALI's pipeline (`feeds.dali`), for a batch of files of size
    `PICTURE` that is cropped to `image_size` pixels."""
    height, width = PICTURE
    pixels = batch_size * height * width
    short, long = scaled_shape(height, width, image_size)
    coefficients: Array = (3 * pixels // 2,), "int16"
    planes: Array = (3 * pixels // 2,), "uint8"
    rgb: Array = (3 * pixels,), "uint8"
    rows: Array = (3 * batch_size * short * width,), "float32"
    scaled: Array = (3 * batch_size * short * long,), "uint8"
    cropped: Array = (3 * batch_size * image_size**2,), dtype
    return (
        Stage.interned("inverse DCT", coefficients, planes),
        Stage.interned("colours", planes, rgb),
        Stage.interned("scale rows", rgb, rows),
        Stage.interned("scale columns", rows, scaled),
        Stage.interned("crop, mirror, normalise", scaled, cropped),
    )


class MixedFeed(Feed):
    """Batches whose decoding on the host is simulated in advance and whose device stages `next` launches."""

    prefetch_depth = PREFETCH_DEPTH
    on_device = True

    def __init__(self, spec: FeedSpec) -> None:
        accelerator: Any = current()  # a simulated one, which records decoding in its timeline
        size, dtype = spec.image_size, spec.tensor.dtype
        works = stages(spec.batch_size, size, dtype)
        self._x = accelerator.empty(stored(spec.tensor.layout, spec.batch_size, 3, size, size), dtype)
        self._t = accelerator.empty((spec.batch_size,), "int32")
        arrays = [*(accelerator.empty(*work.source) for work in works), self._x]
        self._launches = [
            accelerator.prepare(work, *ends) for work, ends in zip(works, itertools.pairwise(arrays), strict=True)
        ]
        self._decoder = Decoder(_batch_ns(spec), PREFETCH_DEPTH, accelerator.note_decoding)

    def next(self) -> tuple[Any, Any]:
        """Wait for a batch from the simulated decoder, launch its device stages, and return the arrays."""
        self._decoder.take()
        for launch in self._launches:
            launch()
        return self._x, self._t
