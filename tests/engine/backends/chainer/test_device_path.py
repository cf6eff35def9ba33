"""The path that training takes on a GPU, with every piece of work computed by a plain NumPy reference: operations,
optimizers, loss scaling and captured graphs must train as the host path does. Fresh memory is poisoned with NaN."""

import functools
import itertools
import math

import numpy as np
import pytest
from training import (
    Batches,
    Trained,
    change_distance,
    loss_distance,
    numpys_processor,
    on_numpy,
    run_step,
    small_session,
    train,
)

from tcbench.core.record import Input, TrainSettings
from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.accelerators.protocol import current, use
from tcbench.engine.accelerators.tracing import TracingAccelerator
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.optimizers import BatchedSGD, OptimizerSpec, PerParameterSGD
from tcbench.engine.backends.chainer.session import ChainerSession
from tcbench.engine.clock import HostClock
from tcbench.engine.feeds import dali
from tcbench.hardware.gpus import GpuProperties

STEPS, CAPTURED = 2, 4
"""The numbers of steps without and with a captured graph, which is replayed from the fourth step on."""
SINGLE = ("fp32+fused", "fp32+im2col", "fp32+batched+nhwc+fused+static_graph")
MORE = ("fp32", "fp32+batched", "fp32+nhwc+fused", "bf16+fused")
HALF = ("fp16", "fp16+batched", "fp16+nhwc", "fp16+fused", "fp16+batched+nhwc+fused", "fp16+nhwc+im2col")
HALF += ("fp16+batched+nhwc+fused+static_graph", "fp16+nhwc+fused+convstats", "fp16+batched+dynamic_scale")
BRAIN = ("bf16", "bf16+batched+nhwc+fused+static_graph")


def on_gpus(configs: tuple[str, ...]) -> list[tuple[str, int, bool]]:
    """Each config with a compute capability and cuDNN's fast mode: the newest, and for NHWC, whose route differs there,
    one before cuDNN's graphs as well. In NCHW every GPU takes the same route."""
    return [(config, 90, True) for config in configs] + [(c, 70, c.startswith("fp16")) for c in configs if "nhwc" in c]


@functools.cache
def on_host(config: str) -> Trained:
    """Train on the host with NumPy's float64 sums, so that rounding decides signs as in the device's reference."""
    return train(config, STEPS, site=numpys_processor(threads=2))


@functools.cache
def on_device(config: str, sm: int = 90, fast: bool = True, steps: int = STEPS, **settings: TrainSettings) -> Trained:
    """Train on a GPU's path. Cached, because several tests compare with the same training."""
    return train(config, steps, site=on_numpy(sm, fast), **settings)


class Recording(NumpyAccelerator):
    """The processor, and the work that was launched on it."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.works: list[w.Work] = []

    def launch(self, work, *arrays):
        self.works.append(work)
        super().launch(work, *arrays)


def as_on_a_gpu(works):
    """A processor adds to dgrad in one piece of work; a GPU normalises by other work with the same operands."""
    for work in works:
        if isinstance(work, w.ConvDgradAdd):
            yield from (w.ConvDgrad(work.conv), w.Add(math.prod(work.conv.x_shape), work.conv.dtype))
        elif isinstance(work, w.BatchNormCallForward):
            yield w.BatchNormForward(work.norm, work.eps, work.momentum)
        elif isinstance(work, w.BatchNormCallBackward):
            yield w.BatchNormBackward(work.norm)
        else:
            yield work


@pytest.mark.parametrize(
    "config",
    [
        *("fp32", "fp16+batched+nhwc", "fp32+batched+nhwc+fused", "fp16+batched+dynamic_scale+nhwc+fused+convstats"),
        *("fp32+im2col", "fp16+batched+nhwc+fused+im2col", "bf16", "bf16+batched+nhwc+fused"),
    ],
)
def test_the_work_that_a_forecast_lists_is_what_a_processor_does(config):
    gpu = TracingAccelerator(GpuProperties("A GPU", 90, 1, 1 << 40))
    forecast = OpenDevice(gpu, HostClock(), lambda: 0)
    processor = Recording()
    host = OpenDevice(processor, HostClock(), lambda: 0, processor.enter)
    for site in (forecast, host):
        with small_session(config, site=site) as session:
            run_step(session)
    listed = [event.work for event in gpu.events if event.kind == "launch"]
    assert len(listed) > 50
    assert list(as_on_a_gpu(processor.works)) == list(as_on_a_gpu(listed))


def largest_difference(first: Trained, second: Trained) -> float:
    return max(float(np.abs(first.running[name] - second.running[name]).max()) for name in first.running)


WITHIN = {"fp32": (2e-6, 2e-4, 1e-5), "fp16": (2e-3, 0.2, 1e-2), "bf16": (1e-2, 0.4, 5e-2)}
"""The most that losses, what training did to parameters, and running statistics may differ by."""


@pytest.mark.parametrize(
    ("config", "sm", "fast"),
    [
        *on_gpus(SINGLE),
        *((config, 90, True) for config in BRAIN),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [*on_gpus(HALF), *on_gpus(MORE)]),
    ],
)
def test_training_on_a_device_is_that_on_the_host(config, sm, fast):
    device, host = on_device(config, sm, fast), on_host(config)
    differences = loss_distance(device, host), change_distance(device, host), largest_difference(device, host)
    assert all(difference < limit for difference, limit in zip(differences, WITHIN[config[:4]], strict=True)), (
        differences
    )


def test_tf32_is_fp32_to_whoever_computes_in_float64():
    assert loss_distance(on_device("tf32"), on_device("fp32")) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    ["fp32", "fp16", "fp16+batched+nhwc+fused", "fp16+batched+nhwc+fused+convstats+dynamic_scale", "fp32+im2col"],
)
def test_a_captured_step_replays_bit_for_bit(config):
    captured, eager = (on_device(name, steps=CAPTURED) for name in (config + "+cuda_graph", config))
    assert np.array_equal(captured.losses, eager.losses)
    assert np.array_equal(captured.change, eager.change)
    assert largest_difference(captured, eager) == 0


class Lending(Batches):
    """A feed that behaves like DALI on a GPU: each batch has a new address and is overwritten by the next call."""

    on_device = True
    decoding = "on the device"
    lent: tuple = ()

    def __init__(self, spec) -> None:
        super().__init__(spec.tensor, spec.image_size, spec.seed)

    def next(self):
        for array in self.lent:
            array.fill(-1 if array.dtype.kind == "i" else np.nan)
        self.lent = tuple(current().upload(array) for array in super().next())
        return self.lent


@pytest.mark.parametrize("config", ["fp32", "fp32+dali", "fp32+dali+cuda_graph"])
def test_a_session_says_how_its_images_are_decoded_where_the_feed_does(monkeypatch, config):
    monkeypatch.setattr(dali, "make_dali_feed", Lending)
    monkeypatch.setattr(ChainerSession, "images", lambda _: None)
    kind = "generated" if "dali" in config else "synthetic"
    with small_session(config, site=on_numpy(), own_feed=True, input=Input(kind=kind)) as session:
        run_step(session)
        assert session.facts().decoding == ("on the device" if "dali" in config else None)


@pytest.mark.slow
def test_a_captured_step_reads_every_batch_wherever_dali_stands_in_the_config(monkeypatch):
    """`explain` adds a rung at the end: to a config with cuda_graph, dali comes after it."""
    monkeypatch.setattr(dali, "make_dali_feed", Lending)
    monkeypatch.setattr(ChainerSession, "images", lambda _: None)

    def losses(config: str) -> list[float]:
        settings = {"site": on_numpy(), "input": Input(kind="generated")}
        with small_session(config, own_feed=True, **settings) as session:
            return [run_step(session) for _ in range(2 * CAPTURED)]

    eager = losses("fp32+dali")
    for config in ("fp32+dali+cuda_graph", "fp32+cuda_graph+dali", "cuda_graph+dali+fp32"):
        assert losses(config) == eager, config
    assert all(previous != loss for previous, loss in itertools.pairwise(eager))


@pytest.mark.long
def test_a_captured_step_follows_a_dynamic_scale_through_overflows():
    settings = {"steps": CAPTURED, "train": TrainSettings(loss_scale=2.0**22)}
    captured = on_device("fp16+batched+dynamic_scale+cuda_graph", **settings)
    eager = on_device("fp16+batched+dynamic_scale", **settings)
    assert np.array_equal(captured.losses, eager.losses)
    assert np.isfinite(captured.losses).all()


@pytest.mark.parametrize("config", ["fp32", "fp16"])
def test_the_batched_update_does_what_the_many_updates_do(config):
    batched, single = on_device(config + "+batched"), on_device(config)
    assert loss_distance(batched, single) < 1e-3
    assert change_distance(batched, single) < (2e-6 if config == "fp32" else 0.1)


def test_the_batched_update_sends_its_table_at_every_step_wherever_gradients_lie(monkeypatch):
    """The trace must show the copy, because addresses change at every step only on a GPU."""
    site = on_numpy()
    with small_session("fp16+batched", site=site) as session:
        monkeypatch.setattr(site.accelerator, "launch", lambda work, *arrays: None)
        monkeypatch.setattr(site.accelerator, "address", lambda array: 1 << 40)
        n_parameters = sum(1 for _ in session.step.model.params())
        for _ in range(3):
            site.accelerator.events.clear()
            run_step(session)
            assert [e.bytes for e in site.accelerator.events if e.kind == "copy"].count(16 * n_parameters) == 1


def test_a_step_gives_back_what_it_takes():
    """Only weights, optimizer, gradients, batch and loss may stay alive between steps."""
    site = on_numpy()
    alive = []
    with small_session("fp16+batched+nhwc+fused", site=site) as session:
        for _ in range(4):
            run_step(session)
            alive.append(site.accelerator.memory.alive_bytes)  # type: ignore[attr-defined]
    assert alive[1] == alive[2] == alive[3]


@pytest.mark.parametrize("optimizer", [PerParameterSGD, BatchedSGD])
def test_a_devices_optimizer_refuses_parameters_that_it_would_take_for_single_precision(optimizer):
    model = chainer.Chain()
    with model.init_scope():
        model.w = chainer.Parameter(np.ones(3))
    settings = OptimizerSpec(learning_rate=0.1, momentum=0.9, weight_decay=0.0, build=optimizer)
    with use(on_numpy().accelerator), pytest.raises(ValueError, match="expected float32 or 16 bits, got float64"):
        instance = optimizer(settings, model)
        model.w.grad = np.ones(3)
        instance.update()
