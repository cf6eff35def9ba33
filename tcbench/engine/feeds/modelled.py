"""Input whose decoding is modelled: no image is read, and no core is taken, so that a host of two cores can stand for
one of twenty beside a virtual device. The rate of decoding is given by whoever asks for it (`--data modelled:RATE`).

What the thread of the steps does with a decoded batch, and what the device does for it, is not modelled here but done:

- the framework's own input (and `opencv`): worker processes decode, the thread of the steps stacks their images into a
  batch, which is then copied to the device;
- `dali`: the host's threads read and Huffman-decode, the device does the rest ("mixed" decoding), as work."""

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
"""Height and width, pixels, of most of ImageNet's files: 4:2:0, so half as many chroma values as pixels."""

_WORKERS_DEPTH = 1
"""Batches that worker processes have ready: Chainer's MultiprocessIterator, by default."""


class Decoder:
    """Decodes batch after batch, each in `batch_ns` nanoseconds, as long as fewer than `depth` lie ready. `note` is
    told of each batch's begin and end (`time.perf_counter_ns`)."""

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
        """Wait until the next batch is decoded; its place is free for another."""
        ready_ns = self._ends_ns.popleft()
        while (left_ns := ready_ns - self._now_ns()) > 0:
            time.sleep(left_ns * 1e-9)
        self._begin(self._now_ns())

    def _begin(self, free_ns: int) -> None:
        begin_ns = max(self._last_ns, free_ns)
        self._last_ns = begin_ns + self._batch_ns
        self._ends_ns.append(self._last_ns)
        self._note(begin_ns, self._last_ns)


def _batch_ns(spec: FeedSpec) -> int:
    assert spec.images_per_s is not None
    return round(spec.batch_size / spec.images_per_s * 1e9)


class WorkersFeed(Feed):
    """Batches that `next` stacks of images in host memory, as worker processes leave them: never a whole batch."""

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
    """One step of the device's from coefficients to a batch: reads one array, writes another."""

    name = "input"
    roles = reads("source") | writes("result")
    does: str
    source: Array
    result: Array

    def array(self, name: str) -> Array:
        array: Array = getattr(self, name)
        return array


def stages(batch_size: int, image_size: int, dtype: DType) -> tuple[Stage, ...]:
    """The stages after Huffman decoding in DALI's pipeline (`feeds.dali`), for files of PICTURE's size."""
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
    """Batches of which the host's share is decoded ahead, and the device's share follows when they are asked for."""

    prefetch_depth = PREFETCH_DEPTH
    on_device = True

    def __init__(self, spec: FeedSpec) -> None:
        accelerator: Any = current()  # one that is simulated: it takes notes
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
        self._decoder.take()
        for launch in self._launches:
            launch()
        return self._x, self._t
