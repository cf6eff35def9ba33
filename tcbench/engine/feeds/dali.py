"""Input by NVIDIA DALI, whose threads read, decode, scale, crop and normalise images while Python computes.

Augmentation and samples per epoch match the other feeds; the random numbers are DALI's own. A `Placement` says where
DALI runs, so that the host and a GPU share one pipeline definition.

On a GPU the feed ensures two things, usually without a wait on the host:

- A batch is complete before it is read. `share_outputs(stream)` makes the consumer's stream wait for DALI's stream
  (with the dynamic executor; see `Executor2::PopOutputs` in DALI's sources).
- A batch is read before its memory is reused. DALI frees an output in the order of the stream that produced it, which
  is not the consumer's (`Buffer::deletion_order` in DALI's headers). The feed therefore keeps a retired batch until the
  consumer's stream has passed a fence."""

import logging
import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from msgspec import UNSET

from tcbench.core.errors import DataError
from tcbench.engine.accelerators import out_of_memory
from tcbench.engine.accelerators.protocol import current
from tcbench.engine.feeds.base import MEAN, STD, Feed, image_error, scaled_side
from tcbench.engine.feeds.spec import FeedSpec
from tcbench.engine.work import ToHalf
from tcbench.hardware import kernel

logger = logging.getLogger(__name__)

PREFETCH_DEPTH = 2
"""The number of batches that DALI works on, or has ready, while the consumer holds one. `Pipeline.run` would keep one
fewer: it schedules the next batch before it takes one."""
_SHUFFLE_BUFFER = 1024
"""The number of files in DALI's shuffle buffer, which never holds two epochs at once."""
_MAX_FULL_DECODES = 4096

_MAX_THREADS = 8
"""The most threads for DALI on a GPU. Its decoder starts as many again, each with its own memory, and more bring no
gain. Source: MLPerf's ResNet submissions, which use 6."""

_RAISED = (RuntimeError, ValueError, IndexError)
"""The Python exceptions that an operator's C++ error may become (`PropagateError` in DALI's sources)."""
_HOST_MEMORY = re.compile(r"std::bad_alloc|Can't allocate \d+ bytes on host")
"""The message of a failed allocation of host or page-locked memory (`CUDABadAlloc` in DALI's headers)."""


MAX_RETIRED = 4
"""The most batches that wait for a fence. With more, the host waits for the oldest: it is then that many steps ahead of
the GPU, so the GPU has enough work, and memory stays bounded."""


class Fence(Protocol):
    """A point in the consumer's stream, such as a `cupy.cuda.Event`."""

    @property
    def done(self) -> bool: ...
    def synchronize(self) -> None: ...


@dataclass(frozen=True)
class Placement:
    """The device that the pipeline runs on, and how batches reach the consumer.

    `hand_over` turns an output into an array that is valid as long as the output lives. On a GPU, `stream` is the
    consumer's stream, and `fence` records a point in it after all work launched so far. `fence` is None where the
    consumer has finished with a batch when it asks for the next one."""

    device_id: int | None
    decoder: Literal["cpu", "mixed"]
    hand_over: Callable[[Any], Any]
    stream: Any = None
    fence: Callable[[], Fence] | None = None


ON_CPU = Placement(None, "cpu", lambda output: np.asarray(output.as_tensor()))
"""Decoding on the host into NumPy arrays."""


def gpu_placement(index: int, stream: Any) -> Placement:
    """Return the placement on CUDA device `index`, for a consumer on a CuPy stream of that GPU. Imports CuPy.

    Batches are CuPy arrays over DALI's own memory. The stream must live as long as the feed."""
    import cupy

    device = cupy.cuda.Device(index)

    def view(output: Any) -> Any:
        """Return DALI's output as a CuPy array, without a copy."""
        # Not through DLPack: when such an array is freed, a thread of DALI waits for the whole device
        # (`DLTensorGraveyard` in its sources), which would abort a stream capture.
        with device, stream:
            return cupy.asarray(output.as_tensor())

    def fence() -> Fence:
        """Return an event that completes when all work queued on the stream so far has finished."""
        with device:
            # `block`: a host thread that waits sleeps, which leaves its core to DALI's threads.
            event: Fence = cupy.cuda.Event(block=True, disable_timing=True)
            event.record(stream)  # type: ignore[attr-defined]
        return event

    return Placement(device_id=index, decoder="mixed", hand_over=view, stream=stream, fence=fence)


class DaliFeed(Feed):
    """Batches that DALI prepares in advance; `next` returns DALI's own buffers without a copy.

    The feed keeps the latest outputs until the next call, and on a GPU until the work launched before that call has
    read them. With DALI's dynamic executor a buffer lives as long as its output, so there is nothing to release."""

    prefetch_depth = PREFETCH_DEPTH

    def __init__(self, spec: FeedSpec, placement: Placement = ON_CPU) -> None:
        self._images = spec.required_images()
        self._spec = spec
        self._placement = placement
        try:
            self._pipeline: Any = _start_pipeline(spec, placement)
        except _RAISED as error:  # DALI allocates the decoder's memory here
            raise _out_of_memory(str(error)) or error from error
        self._held: Any = None
        self._retired: deque[tuple[Any, Fence]] = deque()
        self.on_device = placement.device_id is not None
        if placement.decoder == "mixed":
            self.decoding = _decoding(spec)

    def next(self) -> tuple[Any, Any]:
        """Return the next batch, and order another one from DALI."""
        self._retire()
        stream, hand_over = self._placement.stream, self._placement.hand_over
        try:
            self._held = pixels, labels = self._pipeline.share_outputs(stream)
            self._pipeline.schedule_run()
        except _RAISED as error:
            raise self._specific_error(error) from error
        return self._converted(hand_over(pixels)), hand_over(labels).reshape(-1)

    def _converted(self, x: Any) -> Any:
        """Return the batch in the spec's dtype; a copy if DALI cannot produce that dtype."""
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
        """Put a fence after the latest batch, and release the batches whose fence the GPU has passed. If more than
        MAX_RETIRED are left, wait for the oldest. Without fences, release the latest batch at once."""
        held, self._held = self._held, None
        if held is None or self._placement.fence is None:
            return
        self._retired.append((held, self._placement.fence()))
        if len(self._retired) > MAX_RETIRED:
            self._retired[0][1].synchronize()
        while self._retired and self._retired[0][1].done:
            self._retired.popleft()

    def close(self) -> None:
        """Wait until the GPU has read all batches, and delete the pipeline."""
        self._retire()
        for _, fence in self._retired:
            fence.synchronize()
        self._retired.clear()
        self._pipeline = None

    def _specific_error(self, error: Exception) -> Exception:
        """Return an error that names the broken file or the exhausted memory instead of DALI's long message. If DALI's
        message is about neither, return `error` itself."""
        message = str(error)
        logger.debug("DALI: %s", message)
        if memory_error := _out_of_memory(message):
            return memory_error
        if "decoders" not in message and "readers" not in message:
            return error
        paths = [path for path, _ in self._images.files]
        mentioned = [path for path in paths if str(path) in message]
        broken = _first_broken(mentioned) or _first_broken(paths)
        if broken is not None:
            return broken
        if mentioned:  # Pillow can decode it, DALI cannot. The longest path, since it can contain others.
            return image_error(max(mentioned, key=lambda path: len(str(path))), "DALI refuses it")
        return DataError(
            f"DALI cannot read an image under {self._images.root}, and does not name it: {_reason(message)}"
        )


def _reason(message: str) -> str:
    """Return the line of DALI's long error message that gives the reason."""
    return message.partition("encountered:")[2].strip().partition("\n")[0] or message


def _out_of_memory(message: str) -> MemoryError | None:
    """Return the MemoryError for a message about exhausted memory of the GPU or the host, else None."""
    reason = _reason(message)
    if _HOST_MEMORY.search(reason):
        return MemoryError(f"DALI: {reason}")
    return out_of_memory.from_error(RuntimeError(reason))


def _first_broken(paths: list[Path]) -> DataError | None:
    """Return the error for the first file that Pillow cannot read, or None if it can read all. Checks the headers of
    all files first, then decodes at most _MAX_FULL_DECODES of them."""
    from PIL import Image

    for decode, candidates in ((False, paths), (True, paths[:_MAX_FULL_DECODES])):
        for path in candidates:
            try:
                with Image.open(path) as image:
                    if decode:
                        image.load()
            except (OSError, ValueError, SyntaxError) as error:
                return image_error(path, error)
    return None


def _start_pipeline(spec: FeedSpec, placement: Placement) -> Any:
    """Return a built pipeline that has started to fill its queue."""
    pipeline = _pipeline(spec, placement)
    pipeline.build()
    pipeline.schedule_run()
    return pipeline


def _decoding(spec: FeedSpec) -> str:
    """Return the record's description of decoding on a GPU.

    The GPU's decoder repeats chroma values, where decoders on the host interpolate: `jpeg_fancy_upsampling` is slower,
    and off by default."""
    load = "" if spec.hw_decoder_load is UNSET else f", hw_decoder_load {spec.hw_decoder_load:g}"
    return f"on the GPU, chroma repeated in place of interpolated{load}"


def _pipeline(spec: FeedSpec, placement: Placement) -> Any:
    """Return a DALI pipeline of the spec's batches, not yet built."""
    import nvidia.dali

    dali: Any = nvidia.dali  # it creates its names at run time, where a type checker cannot see them
    fn, types = dali.fn, dali.types

    images = spec.required_images()
    nhwc = spec.tensor.layout == "NHWC"
    threads = max(1, spec.threads)
    decoder_settings: dict[str, Any] = {}
    if placement.decoder == "mixed":
        # This thread's affinity leaves out the core of the thread that drives the GPU. With `affine` the decoder would
        # bind its threads to other processors.
        threads = min(threads, len(kernel.affinity()), _MAX_THREADS)
        decoder_settings = {"affine": False}
        if spec.hw_decoder_load is not UNSET:
            decoder_settings["hw_decoder_load"] = spec.hw_decoder_load

    @dali.pipeline_def(
        batch_size=spec.batch_size,
        num_threads=threads,
        device_id=placement.device_id,
        seed=spec.seed % 2**31,
        prefetch_queue_depth=PREFETCH_DEPTH,
        exec_async=True,
        exec_pipelined=True,
        exec_dynamic=True,
    )
    def pipeline() -> tuple[Any, Any]:
        """Define DALI's graph: read, decode, scale, crop, mirror and normalise images."""
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
            adjust_orientation=False,  # Chainer's datasets ignore EXIF orientation too
            **decoder_settings,
        )
        scaled = fn.resize(
            decoded,
            resize_shorter=scaled_side(spec.image_size),
            interp_type=types.INTERP_LINEAR,
            antialias=True,
            subpixel_scale=False,  # as in Pillow, the whole image fills the rounded size
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
    """Return a DALI feed on the current GPU, or on the host if there is none or it is simulated. Raises ImportError if
    DALI is not installed."""
    accelerator: Any = current()
    index: int | None = getattr(accelerator, "index", None)
    return DaliFeed(spec, ON_CPU if index is None else gpu_placement(index, accelerator.stream))
