"""Tests of what only the DALI feed does: prefetch, lend its buffers, close, and protect buffers on a GPU."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
from gpu import SPIN

from tcbench.core.errors import DataError, OutOfDeviceMemory
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators import protocol as accelerators
from tcbench.engine.accelerators.virtual.accelerator import VirtualAccelerator
from tcbench.engine.feeds import dali
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.hardware import gpus


@pytest.fixture(autouse=True, scope="module")
def _with_dali() -> None:
    """A second of a processor, which who only collects tests need not wait for."""
    pytest.importorskip("nvidia.dali")


def _spec(images: ImageFolder, batch_size: int = 8) -> FeedSpec:
    return FeedSpec(images, batch_size, 64, 24, TensorSpec("NHWC", "float16"), seed=1, threads=1)


def _n_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_as_many_batches_are_under_way_as_is_said(images: ImageFolder) -> None:
    """DALI counts what it was asked for and has not handed over: while the consumer computes, that is the depth."""
    feed = dali.DaliFeed(_spec(images))
    for _ in range(5):
        feed.next()
        assert feed._pipeline._batches_to_consume == feed.prefetch_depth == 2
    feed.close()


def test_a_batch_is_lent_and_stays_until_the_next_call(images: ImageFolder) -> None:
    feed = dali.make_dali_feed(_spec(images))
    for _ in range(5):
        x, t = feed.next()
        pixels, labels = x.copy(), t.copy()
        time.sleep(0.03)  # DALI fills its queue meanwhile
        assert not x.flags.owndata
        assert (x == pixels).all()
        assert (t == labels).all()
    feed.close()


def test_closing_ends_its_threads(images: ImageFolder) -> None:
    before = _n_threads()
    feed = dali.make_dali_feed(_spec(images))
    feed.next()
    during = _n_threads()
    feed.close()
    deadline = time.monotonic() + 10
    while _n_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert during > before
    assert _n_threads() <= before
    assert threading.active_count() >= 1


def test_epochs_stay_whole_when_files_outnumber_the_shuffle_buffer(
    images: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dali, "_SHUFFLE_BUFFER", 5)
    feed = dali.make_dali_feed(_spec(images, batch_size=9))
    stream = np.concatenate([feed.next()[1].copy() for _ in range(8)]).tolist()
    feed.close()
    epochs = [tuple(stream[start : start + 24]) for start in (0, 24, 48)]
    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert len({*epochs, tuple(range(24))}) == 4


def test_dali_is_imported_by_the_factory_only_and_quietly(images: ImageFolder) -> None:
    code = (
        "import sys, pathlib\n"
        "from tcbench.engine.accelerators import protocol\n"
        "from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator\n"
        "from tcbench.engine.feeds import dali\n"
        "from tcbench.engine.feeds.spec import FeedSpec, TensorSpec\n"
        "from tcbench.engine.feeds.dataset import scan\n"
        "assert 'nvidia.dali' not in sys.modules\n"
        f"images = scan(pathlib.Path({str(images.root)!r}))\n"
        "with protocol.use(NumpyAccelerator(1)):\n"
        "    feed = dali.make_dali_feed(FeedSpec(images, 4, 32, 16, TensorSpec(), 1, 1))\n"
        "feed.next()\n"
        "feed.close()\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Stream:
    """The consumer's stream: work is launched on it and done later, when the test says so."""

    def __init__(self) -> None:
        self.launched = 0
        self.done = 0
        self.waits = 0

    def fence(self) -> Fence:
        return Fence(self, self.launched)


class Fence:
    def __init__(self, stream: Stream, behind: int) -> None:
        self.stream, self.behind = stream, behind

    @property
    def done(self) -> bool:
        return self.stream.done >= self.behind

    def synchronize(self) -> None:
        self.stream.waits += not self.done
        self.stream.done = max(self.stream.done, self.behind)


class Output:
    """One output of DALI; its memory is used again when nobody holds it."""

    alive: ClassVar[set[int]] = set()

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.alive.add(batch)

    def __del__(self) -> None:
        self.alive.discard(self.batch)


class Pipeline:
    """A stand-in for DALI's: the first order fills the queue, and each further one orders one batch."""

    def __init__(self) -> None:
        self.batches = 0
        self.ordered = 0
        self.streams: list[Any] = []

    def schedule_run(self) -> None:
        self.ordered += 1 if self.batches or self.ordered else dali.PREFETCH_DEPTH

    def share_outputs(self, cuda_stream: Any = None) -> tuple[Output, Output]:
        if not self.ordered:
            raise StopIteration
        self.ordered -= 1
        self.batches += 1
        self.streams.append(cuda_stream)
        output = Output(self.batches)
        return output, output


@pytest.fixture
def stream() -> Stream:
    Output.alive.clear()
    return Stream()


@pytest.fixture
def on_gpu(images: ImageFolder, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> dali.DaliFeed:
    """A feed for a stand-in stream, from a stand-in pipeline; arrays do not keep the outputs alive."""
    pipeline = Pipeline()
    pipeline.schedule_run()
    monkeypatch.setattr(dali, "_start_pipeline", lambda spec, placement: pipeline)
    view = lambda output: np.full(1, output.batch, np.float16)  # noqa: E731
    return dali.DaliFeed(_spec(images), dali.Placement(0, "mixed", view, stream, stream.fence))


def _step(feed: dali.DaliFeed, stream: Stream) -> int:
    """A step of the consumer's: launch what reads the batch, and do not wait for it."""
    x, _ = feed.next()
    stream.launched += 1
    return int(x[0])


def test_on_a_gpu_the_consumers_stream_waits_for_dali(on_gpu: dali.DaliFeed, stream: Stream) -> None:
    on_gpu.next()
    assert on_gpu._pipeline.streams == [stream]
    assert on_gpu.on_device


def test_a_batch_is_kept_until_the_gpu_has_read_it(on_gpu: dali.DaliFeed, stream: Stream) -> None:
    for _ in range(3):
        _step(on_gpu, stream)
    assert Output.alive == {1, 2, 3}
    stream.done = 2
    _step(on_gpu, stream)
    assert Output.alive == {3, 4}
    assert stream.waits == 0


def test_a_host_far_ahead_waits_for_the_oldest_batch_only(on_gpu: dali.DaliFeed, stream: Stream) -> None:
    ahead = dali.MAX_RETIRED + 1
    for _ in range(ahead):
        _step(on_gpu, stream)
    assert stream.waits == 0
    assert len(Output.alive) == ahead
    assert _step(on_gpu, stream) == ahead + 1
    assert (stream.waits, stream.done) == (1, 1)
    assert Output.alive == set(range(2, ahead + 2))


def test_closing_on_a_gpu_waits_for_what_still_reads(on_gpu: dali.DaliFeed, stream: Stream) -> None:
    for _ in range(3):
        _step(on_gpu, stream)
    on_gpu.close()
    assert stream.done == 3
    assert not Output.alive
    on_gpu.close()


def test_on_a_gpu_all_but_reading_files_and_drawing_numbers_is_done_there(images: ImageFolder) -> None:
    """DALI's own graph, made but not built: building asks for the GPU."""
    placement = dali.Placement(0, "mixed", hand_over=lambda output: output)
    pipeline = dali._pipeline(replace(_spec(images), hw_decoder_load=0.8), placement)
    with contextlib.suppress(RuntimeError):
        pipeline.build()
    where = {op._op.schema_name: op._op.device for op in pipeline._ops}
    assert where == {
        "readers__File": "cpu",
        "random__Uniform": "cpu",
        "random__CoinFlip": "cpu",
        "decoders__Image": "mixed",
        "Resize": "gpu",
        "CropMirrorNormalize": "gpu",
    }
    assert [output.device for output in pipeline._graph_outputs] == ["gpu", "gpu"]
    assert pipeline.exec_dynamic, "only this execution model hands outputs over on a stream"
    decoder = next(str(op.spec) for op in pipeline._ops if op._op.schema_name == "decoders__Image")
    assert "jpeg_fancy_upsampling" not in decoder, "it costs speed; DALI's default repeats chroma"
    assert "hw_decoder_load: 0.8" in decoder
    assert "affine: False" in decoder, "its threads would take the driver's core"


@pytest.mark.parametrize(("threads", "cores", "expected"), [(16, 15, 8), (16, 3, 3), (4, 15, 4), (0, 15, 1)])
def test_on_a_gpu_dali_takes_few_threads_and_none_of_the_drivers_core(
    images: ImageFolder, monkeypatch: pytest.MonkeyPatch, threads: int, cores: int, expected: int
) -> None:
    monkeypatch.setattr(dali.os, "sched_getaffinity", lambda _: set(range(cores)))
    spec = replace(_spec(images), threads=threads)
    on_gpu = dali._pipeline(spec, dali.Placement(0, "mixed", hand_over=lambda output: output))
    assert (on_gpu.num_threads, dali._pipeline(spec, dali.ON_CPU).num_threads) == (expected, max(1, threads))


def test_every_setting_of_dali_on_a_gpu_is_one_of_its_decoder(on_gpu: dali.DaliFeed, images: ImageFolder) -> None:
    from nvidia.dali import backend

    pipeline = dali._pipeline(replace(_spec(images), hw_decoder_load=0.9), on_gpu._placement)
    with contextlib.suppress(RuntimeError):
        pipeline.build()
    decoder = next(str(op.spec) for op in pipeline._ops if op._op.schema_name == "decoders__Image")
    assert "hw_decoder_load: 0.9" in decoder
    assert {"hw_decoder_load", "affine"} <= {*backend.GetSchema("decoders__Image").GetArgumentNames()}


def test_how_a_gpu_decodes_is_said_and_that_a_host_does_is_not(
    on_gpu: dali.DaliFeed, images: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = "on the GPU, chroma repeated in place of interpolated"
    assert (on_gpu.decoding, dali.DaliFeed(_spec(images)).decoding) == (description, None)
    tuned = dali.DaliFeed(replace(_spec(images), hw_decoder_load=0.0), on_gpu._placement)
    assert tuned.decoding == f"{description}, hw_decoder_load 0"


def _story(reason: str, operator: str = "decoders.image") -> RuntimeError:
    """Return DALI's error for an operator that failed, with the reason in the middle."""
    return RuntimeError(
        f"Critical error in pipeline:\nError in MIXED operator `nvidia.dali.fn.{operator}`,\nwhich was used in the "
        f'pipeline definition with the following traceback:\n\n  File "dali.py", line 1, in pipeline\n\n'
        f"encountered:\n\n{reason}\nCurrent pipeline object is no longer valid."
    )


SPENT = [
    ("CUDA allocation failed", OutOfDeviceMemory, "^CUDA allocation failed$"),
    ("Can't allocate 1073741824 bytes on device 0.", OutOfDeviceMemory, r"^requested 1\.0 GiB more$"),
    ("nvImageCodec failure: '#5'", OutOfDeviceMemory, "^nvImageCodec failure: '#5'$"),
    ("Can't allocate 4096 bytes on host.", MemoryError, r"^DALI: Can't allocate 4096 bytes on host\.$"),
    ("std::bad_alloc", MemoryError, r"^DALI: std::bad_alloc$"),
]


@pytest.mark.parametrize(("reason", "kind", "says"), SPENT)
@pytest.mark.parametrize("when", ["start", "run"])
def test_memory_spent_by_dali_is_told_at_once(
    images: ImageFolder, monkeypatch: pytest.MonkeyPatch, reason: str, kind: type, says: str, when: str
) -> None:
    """No image is opened to find out whether it is a broken one."""
    fail = Mock(side_effect=_story(reason))
    monkeypatch.setattr(dali, "_first_broken", lambda paths: pytest.fail("looks at images"))
    pipeline = SimpleNamespace(share_outputs=fail, schedule_run=lambda: None)
    monkeypatch.setattr(dali, "_start_pipeline", fail if when == "start" else lambda *_: pipeline)
    placement = dali.Placement(0, "mixed", lambda output: output, "stream", lambda: Fence(Stream(), 0))
    with pytest.raises(MemoryError, match=says) as caught:
        dali.DaliFeed(_spec(images), placement).next()
    assert caught.type is kind


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, IndexError])
def test_a_file_that_dali_names_is_named_whatever_it_raises(
    on_gpu: dali.DaliFeed, images: ImageFolder, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    path = images.files[3][0]
    error = kind(str(_story(f"Failed to decode sample #3 : {path}")))
    monkeypatch.setattr(on_gpu._pipeline, "share_outputs", Mock(side_effect=error))
    with pytest.raises(DataError, match=f"image {path} cannot be decoded \\(DALI refuses it\\)"):
        on_gpu.next()


def test_an_error_that_is_no_images_stays_what_it_is(on_gpu: dali.DaliFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a fault on the GPU, after which all work fails."""
    error = _story("CUDA runtime API error cudaErrorIllegalAddress (700)", "crop_mirror_normalize")
    monkeypatch.setattr(dali, "_first_broken", lambda paths: pytest.fail("looks at images"))
    monkeypatch.setattr(on_gpu._pipeline, "share_outputs", Mock(side_effect=error))
    with pytest.raises(RuntimeError) as caught:
        on_gpu.next()
    assert caught.value is error


def test_what_is_done_on_a_gpu_is_done_on_the_consumers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy stands in: views are made and fences are set on the stream, and a host that waits sleeps."""
    current: list[Any] = []
    fences: list[Any] = []

    class Current:
        def __enter__(self) -> None:
            current.append(self)

        def __exit__(self, *error: object) -> None:
            current.pop()

    class Device(Current):
        def __init__(self, index: int) -> None:
            assert index == 1

    class Event:
        def __init__(self, block: bool, disable_timing: bool) -> None:
            assert block and disable_timing
            assert isinstance(current[0], Device), "an event belongs to the device that is current"

        def record(self, stream: Any) -> None:
            fences.append(stream)

    cupy = ModuleType("cupy")
    cupy.asarray = lambda tensor: (tensor, list(current))  # type: ignore[attr-defined]
    cupy.cuda = SimpleNamespace(Event=Event, Device=Device)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    stream = Current()
    placement = dali.gpu_placement(1, stream)
    assert (placement.device_id, placement.decoder, placement.stream) == (1, "mixed", stream)
    tensor, (_, innermost) = placement.hand_over(SimpleNamespace(as_tensor=lambda: "tensor"))
    assert (tensor, innermost) == ("tensor", stream)
    assert placement.fence is not None
    placement.fence()
    assert fences == [stream]
    assert not current


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_on_a_gpu_the_pixels_are_those_of_the_cpu(images: ImageFolder, layout: Any, dtype: Any) -> None:
    import cupy

    spec = FeedSpec(images, 8, 64, 24, TensorSpec(layout, dtype), seed=1, threads=2, augment=False)
    stream = cupy.cuda.Stream(non_blocking=True)
    on_cpu, on_gpu = dali.DaliFeed(spec), dali.DaliFeed(spec, dali.gpu_placement(0, stream))
    for _ in range(3):
        (x, t), (y, u) = on_cpu.next(), on_gpu.next()
        with stream:
            y_host, u_host = cupy.asnumpy(y, stream=stream), cupy.asnumpy(u, stream=stream)
        assert (y.shape, y.dtype, y.flags.c_contiguous) == (x.shape, x.dtype, True)
        assert (u_host == t).all()
        assert u.dtype == np.int32
        error = np.abs(x.astype(np.float32) - y_host.astype(np.float32)).mean() * 57
        assert error < 1.0, "mean difference in units of 0..255, as the rung declares it"
    on_cpu.close()
    on_gpu.close()


@pytest.mark.gpu
def test_on_a_gpu_far_behind_the_host_every_batch_arrives_whole(images: ImageFolder) -> None:
    """The consumer reads each batch late, while DALI makes others: none is overwritten before, none is read early."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    spin = cupy.RawKernel(SPIN, "spin")
    feed = dali.DaliFeed(_spec(images), dali.gpu_placement(0, stream))
    late = []
    with stream:
        for _ in range(30):
            x, _ = feed.next()
            spin((1,), (1,), (10_000_000,))
            late.append(x.copy())
    feed.close()
    stream.synchronize()
    again = dali.DaliFeed(_spec(images), dali.gpu_placement(0, stream))
    for batch in late:
        x, _ = again.next()
        with stream:
            expected, actual = (cupy.asnumpy(pixels, stream=stream).astype(np.float32) for pixels in (x, batch))
        # Two decoders share the work and round differently; another batch would be about 1 away.
        assert np.abs(expected - actual).mean() < 0.05
    again.close()


def test_beside_a_gpu_that_is_simulated_it_decodes_on_the_host(images: ImageFolder) -> None:
    accelerator = VirtualAccelerator(gpus.load("V100"), CudnnSettings())
    with accelerators.use(accelerator):
        feed = dali.make_dali_feed(_spec(images))
        x, _ = feed.next()
        assert isinstance(x, np.ndarray)
        feed.close()
    assert not feed.on_device
