"""NVIDIA DALI: its own threads read, decode, scale, crop and normalise while Python computes.

The augmentation and the samples per epoch are those of the other feeds; the random numbers are DALI's. Where DALI
runs is told by a `Placement`, so that decoding on a GPU is one more of those and not another pipeline.

On a GPU two orders are kept, and the host waits for neither in the usual case:

- a batch is complete before it is read: `share_outputs(stream)` makes the consumer's stream wait for DALI's own (its
  dynamic executor; `Executor2::PopOutputs` in its sources);
- a batch is read before its memory is used again: DALI frees an output's memory in the order of the stream that it was
  made on, which is not the consumer's (`Buffer::deletion_order` in its headers). So a batch that is handed in is kept
  until the consumer's stream has passed a fence set behind it."""

import logging
import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from tcbench.core.errors import DataError, SelectionError
from tcbench.engine.accelerators import out_of_memory
from tcbench.engine.accelerators.protocol import current
from tcbench.engine.feeds.base import MEAN, STD, Feed, broken_image, images_of, scaled_side
from tcbench.engine.feeds.spec import FeedSpec
from tcbench.engine.work import ToHalf
from tcbench.hardware import kernel

logger = logging.getLogger(__name__)

PREFETCH_DEPTH = 2
"""Batches that DALI works on, or has ready, while the consumer has one. `Pipeline.run` would keep one fewer: it takes a
batch only after it has ordered the next."""
_SHUFFLE_BUFFER = 1024
"""Files that DALI holds to draw from; it never mixes two epochs in it."""
_MAX_FULL_DECODES = 4096

_MOST_THREADS = 8
"""DALI's threads beside a GPU, of which its decoder starts as many again: each has memory of its own, and more gain
nothing. Source: MLPerf's ResNet submissions, which take 6."""

GPU_SETTINGS = "TCBENCH_DALI"
"""The environment variable with a `GpuSettings` as JSON, by which settings are compared on a GPU."""


class GpuSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """DALI's settings on a GPU whose worth only a measurement shows; unset: DALI's own. All but the queue's depth are
    its decoder's. Memory is in bytes: padding is taken once for each thread on the device, twice on the host."""

    hw_decoder_load: float | UnsetType = UNSET
    device_memory_padding: int | UnsetType = UNSET
    host_memory_padding: int | UnsetType = UNSET
    preallocate_width_hint: int | UnsetType = UNSET
    preallocate_height_hint: int | UnsetType = UNSET
    prefetch_queue_depth: int | UnsetType = UNSET


_RAISED = (RuntimeError, ValueError, IndexError)
"""Python's classes of an operator's error, by its type in C++ (`PropagateError` in DALI's sources)."""
_HOST_MEMORY = re.compile(r"std::bad_alloc|Can't allocate \d+ bytes on host")
"""A failed allocation of the host's memory, and of page-locked memory (`CUDABadAlloc` in DALI's headers)."""


MAX_RETIRED = 4
"""Batches kept behind a fence. With more, the host waits for the oldest: it is that many steps ahead of the GPU, which
starves nobody, and memory stays bounded."""


class Fence(Protocol):
    """A point in the consumer's stream (a `cupy.cuda.Event`)."""

    @property
    def done(self) -> bool: ...
    def synchronize(self) -> None: ...


@dataclass(frozen=True)
class Placement:
    """The place where the pipeline runs, and how a batch leaves it. `hand_over` turns one output into an array that
    stays valid while the output lives. `stream` is the consumer's on a GPU, and `fence` sets a point in it behind all
    work that the consumer has launched so far; None where the consumer is done with a batch when it asks for the next
    one."""

    device_id: int | None
    decoder: Literal["cpu", "mixed"]
    hand_over: Callable[[Any], Any]
    stream: Any = None
    fence: Callable[[], Fence] | None = None


ON_CPU = Placement(None, "cpu", lambda output: np.asarray(output.as_tensor()))


def gpu_placement(index: int, stream: Any) -> Placement:
    """DALI on the GPU `index` (as CUDA counts them), for a consumer on a CuPy stream of that GPU. Imports CuPy. Arrays
    are CuPy's, on DALI's own memory; the stream must live as long as the feed."""
    import cupy

    device = cupy.cuda.Device(index)

    def view(output: Any) -> Any:
        # Not through DLPack: where such an array goes, a thread of DALI's waits for the whole device
        # (`DLTensorGraveyard` in its sources), which ends a capture that is under way.
        with device, stream:
            return cupy.asarray(output.as_tensor())

    def fence() -> Fence:
        with device:
            # `block`: a host that has to wait sleeps, and leaves its core to DALI's threads.
            event: Fence = cupy.cuda.Event(block=True, disable_timing=True)
            event.record(stream)  # type: ignore[attr-defined]
        return event

    return Placement(device_id=index, decoder="mixed", hand_over=view, stream=stream, fence=fence)


class DaliFeed(Feed):
    """Batches that DALI has made ahead; `next` waits for one and hands over DALI's own buffer, without a copy. The
    outputs of the latest `next` are kept, and with them their buffer, until the next call lets DALI use it again; on a
    GPU, until the work that was launched before that call has read them. With DALI's dynamic executor a buffer belongs
    to who holds its output: there is nothing to release."""

    prefetch_depth = PREFETCH_DEPTH

    def __init__(self, spec: FeedSpec, placement: Placement = ON_CPU) -> None:
        self._images = images_of(spec)
        self._spec = spec
        self._placement = placement
        try:
            self._pipeline: Any = _built(spec, placement)
        except _RAISED as error:  # DALI takes the decoder's memory here
            raise _out_of_memory(str(error)) or error from error
        self._held: Any = None
        self._retired: deque[tuple[Any, Fence]] = deque()
        self.on_device = placement.device_id is not None
        if placement.decoder == "mixed":
            self.decoding = _decoding(spec)
            self.prefetch_depth = int(_asked(spec).get("prefetch_queue_depth", PREFETCH_DEPTH))

    def next(self) -> tuple[Any, Any]:
        self._retire()
        stream, hand_over = self._placement.stream, self._placement.hand_over
        try:
            self._held = pixels, labels = self._pipeline.share_outputs(stream)
            self._pipeline.schedule_run()
        except _RAISED as error:
            raise self._explained(error) from error
        return self._stored(hand_over(pixels)), hand_over(labels).reshape(-1)

    def _stored(self, x: Any) -> Any:
        """The batch in the spec's dtype: itself, or a copy in one that DALI does not make."""
        dtype = self._spec.tensor.dtype
        if dtype == "float64":
            return x.astype(dtype)
        if dtype != "bfloat16":
            return x
        accelerator = current()
        narrow = accelerator.empty(x.shape, dtype)
        accelerator.launch(ToHalf.interned(x.size, dtype), x, narrow)
        return narrow

    def _retire(self) -> None:
        """Hand the latest batch in, and let go of those that nobody reads any more."""
        held, self._held = self._held, None
        if held is None or self._placement.fence is None:
            return
        self._retired.append((held, self._placement.fence()))
        if len(self._retired) > MAX_RETIRED:
            self._retired[0][1].synchronize()
        while self._retired and self._retired[0][1].done:
            self._retired.popleft()

    def close(self) -> None:
        self._retire()
        for _, fence in self._retired:
            fence.synchronize()
        self._retired.clear()
        self._pipeline = None

    def _explained(self, error: Exception) -> Exception:
        """DALI ends with the whole pipeline's story: find the file it is about."""
        message = str(error)
        logger.debug("DALI: %s", message)
        if spent := _out_of_memory(message):
            return spent
        if "decoders" not in message and "readers" not in message:
            return error
        paths = [path for path, _ in self._images.files]
        named = [path for path in paths if str(path) in message]
        broken = _first_broken(named) or _first_broken(paths)
        if broken is not None:
            return broken
        if named:  # Pillow makes something of it, DALI does not.
            return broken_image(max(named, key=lambda path: len(str(path))), "DALI refuses it")
        return DataError(
            f"DALI cannot read an image under {self._images.root}, and does not say which: {_reason(message)}"
        )


def _reason(message: str) -> str:
    """The line that says what happened, of the whole story of a pipeline that DALI tells."""
    return message.partition("encountered:")[2].strip().partition("\n")[0] or message


def _out_of_memory(message: str) -> MemoryError | None:
    """The error for memory that is spent: the GPU's, or the host's, which DALI tells in an operator's error too."""
    reason = _reason(message)
    if _HOST_MEMORY.search(reason):
        return MemoryError(f"DALI: {reason}")
    return out_of_memory.from_error(RuntimeError(reason))


def _first_broken(paths: list[Path]) -> DataError | None:
    """The first file that Pillow cannot read: by their headers, which is quick, then whole."""
    from PIL import Image

    for whole, candidates in ((False, paths), (True, paths[:_MAX_FULL_DECODES])):
        for path in candidates:
            try:
                with Image.open(path) as image:
                    if whole:
                        image.load()
            except (OSError, ValueError, SyntaxError) as error:
                return broken_image(path, error)
    return None


def _built(spec: FeedSpec, placement: Placement) -> Any:
    """A pipeline that has begun to fill its queue."""
    pipeline = _pipeline(spec, placement)
    pipeline.build()
    pipeline.schedule_run()
    return pipeline


def _asked(spec: FeedSpec) -> dict[str, float]:
    """Return the settings on a GPU that the scenario or the environment names. Raises SelectionError."""
    try:
        settings = msgspec.json.decode(os.environ.get(GPU_SETTINGS, "{}"), type=GpuSettings)
    except msgspec.DecodeError as error:
        names = ", ".join(GpuSettings.__struct_fields__)
        raise SelectionError(f"{GPU_SETTINGS}: {error}; expected a JSON object of numbers ({names})") from None
    by_scenario = GpuSettings(hw_decoder_load=spec.hw_decoder_load)
    values: dict[str, float] = msgspec.to_builtins(by_scenario) | msgspec.to_builtins(settings)
    return values


def _decoding(spec: FeedSpec) -> str:
    """The record's words for decoding on a GPU, which repeats chroma where every decoder on the host interpolates it:
    `jpeg_fancy_upsampling` costs speed, and is off unless asked for."""
    asked = "".join(f", {name} {value:g}" for name, value in _asked(spec).items())
    return f"on the GPU, chroma repeated in place of interpolated{asked}"


def _pipeline(spec: FeedSpec, placement: Placement) -> Any:
    import nvidia.dali

    dali: Any = nvidia.dali  # which makes its names at run time, out of sight of a type checker
    fn, types = dali.fn, dali.types

    images = images_of(spec)
    nhwc = spec.tensor.layout == "NHWC"
    threads, depth = max(1, spec.threads), PREFETCH_DEPTH
    decoder_settings: dict[str, Any] = {}
    if placement.decoder == "mixed":
        # The processors of this thread are all but the core that is left to the thread which drives the GPU. With
        # `affine` the decoder would bind its threads to processors of its own choice.
        threads = min(threads, len(kernel.affinity()), _MOST_THREADS)
        decoder_settings = {"affine": False, **_asked(spec)}
        depth = decoder_settings.pop("prefetch_queue_depth", PREFETCH_DEPTH)

    @dali.pipeline_def(
        batch_size=spec.batch_size,
        num_threads=threads,
        device_id=placement.device_id,
        seed=spec.seed % 2**31,
        prefetch_queue_depth=depth,
        exec_async=True,
        exec_pipelined=True,
        exec_dynamic=True,
    )
    def pipeline() -> tuple[Any, Any]:
        files, labels = fn.readers.file(
            files=[os.fsencode(path).decode("utf-8") for path, _ in images.files],
            labels=[label for _, label in images.files],
            random_shuffle=spec.augment,
            initial_fill=min(len(images.files), _SHUFFLE_BUFFER),
        )
        decoded = fn.decoders.image(
            files,
            device=placement.decoder,
            output_type=types.RGB,
            adjust_orientation=False,  # Chainer's datasets do not look at EXIF orientation either
            **decoder_settings,
        )
        scaled = fn.resize(
            decoded,
            resize_shorter=scaled_side(spec.image_size),
            interp_type=types.INTERP_LINEAR,
            antialias=True,
            subpixel_scale=False,  # as Pillow: the whole image fills the rounded size
        )
        window: dict[str, Any] = {"crop_pos_x": 0.5, "crop_pos_y": 0.5, "rounding": "truncate"}
        if spec.augment:
            window = {
                "crop_pos_x": fn.random.uniform(range=(0.0, 1.0)),
                "crop_pos_y": fn.random.uniform(range=(0.0, 1.0)),
                "mirror": fn.random.coin_flip(probability=0.5),
            }
        pixels = fn.crop_mirror_normalize(
            scaled,
            crop=(spec.image_size, spec.image_size),
            mean=MEAN.tolist(),
            std=STD.tolist(),
            dtype=types.FLOAT16 if spec.tensor.dtype == "float16" else types.FLOAT,
            output_layout="HWC" if nhwc else "CHW",
            **window,
        )
        return pixels, labels if placement.device_id is None else labels.gpu()

    return pipeline()


def make_dali_feed(spec: FeedSpec) -> Feed:
    """DALI on the images of `spec`, on the GPU that is current, or on the host, also beside a GPU that is simulated.
    Raises ImportError where DALI is not installed."""
    accelerator: Any = current()
    index: int | None = getattr(accelerator, "index", None)
    return DaliFeed(spec, ON_CPU if index is None else gpu_placement(index, accelerator.stream))
