"""Trains a small ResNet-50 through the real session, for tests: same weights and batches whatever the config."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import factories
import numpy as np
import pytest
from reference_accelerator import ReferenceAccelerator

from tcbench.core.record import Cell, Input, TrainSettings
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.backends.chainer.rungs import RUNGS
from tcbench.engine.backends.chainer.session import ChainerSession
from tcbench.engine.backends.chainer.sites import deliver, processor
from tcbench.engine.clock import HostClock
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.spec import TensorSpec
from tcbench.engine.models.resnet import ResNet
from tcbench.engine.models.small import WELL_CONDITIONED
from tcbench.engine.numerics.distances import _Float64
from tcbench.engine.numerics.flow import on_host
from tcbench.hardware.gpus import GpuProperties

SMOOTH = WELL_CONDITIONED
"""Two stages, with and without a shortcut convolution: few values lie near ReLU's kink, and rounding errors stay
rounding errors. For 32x32 images."""

BATCH_SIZE, N_CLASSES = 8, 10


class Batches(Feed):
    """A feed of random batches, the same pixels and labels for every layout and dtype."""

    def __init__(self, spec: TensorSpec, image_size: int, seed: int) -> None:
        self.spec = spec
        self.image_size = image_size
        self.rng = np.random.RandomState(1000 + seed)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        # Pixels are exact in float16, so that every dtype trains on the same numbers.
        x = self.rng.standard_normal((BATCH_SIZE, 3, self.image_size, self.image_size)).astype(np.float16)
        t = self.rng.randint(0, N_CLASSES, BATCH_SIZE).astype(np.int32)
        if self.spec.layout == "NHWC":
            x = x.transpose(0, 2, 3, 1)
        return np.ascontiguousarray(x, dtype=self.spec.dtype), t


def on_numpy(sm: int = 90, fast: bool = True) -> OpenDevice:
    """A GPU of that compute capability, with NumPy in its place."""
    accelerator = ReferenceAccelerator(GpuProperties("NumPy", sm, 1, 1 << 40), fast)
    return OpenDevice(accelerator, HostClock(), lambda: accelerator.memory.peak_bytes)


def numpys_processor(threads: int = 1) -> OpenDevice:
    """The processor by NumPy alone, whose float32 arithmetic is what the references of GPU work do too."""
    accelerator = NumpyAccelerator(threads)
    return OpenDevice(accelerator, HostClock(), lambda: 0, enter=accelerator.enter, reducer=accelerator.reducer)


@dataclass(frozen=True)
class Trained:
    """Losses per step; parameters and running statistics before and after, in (K, C, R, S), float64."""

    losses: np.ndarray
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    running: dict[str, np.ndarray]

    @property
    def change(self) -> np.ndarray:
        """The change of all parameters by training, as one vector."""
        return np.concatenate([(self.after[name] - self.before[name]).ravel() for name in sorted(self.after)])


def small_cell(config: str, **changes: Any) -> Cell:
    fields = {"n_classes": N_CLASSES, "input": Input(kind="synthetic"), "threads": 1}
    fields["train"] = TrainSettings(learning_rate=0.01, loss_scale=128.0)
    return factories.make_cell(config, BATCH_SIZE, **{**fields, **changes})


@contextlib.contextmanager
def small_session(
    config: str,
    seed: int = 0,
    geometry: ResNet = SMOOTH,
    image_size: int = 32,
    site: OpenDevice | None = None,
    own_feed: bool = False,
    **cell_changes: Any,
) -> Iterator[ChainerSession]:
    """A session on the small model and random batches, or those of the cell's own feed."""
    cell = small_cell(config, image_size=image_size, seed=seed, **cell_changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RUNGS.rungs, "fp64", _Float64())  # type: ignore[arg-type]
        session = ChainerSession(cell, site or processor(cell.threads), geometry=geometry)
    try:
        if not own_feed:
            batches = Batches(session.step.model.parts.spec, image_size, seed)
            session.step.feed = deliver(site, batches) if site else batches
        yield session
    finally:
        session.close()


def run_step(session: ChainerSession) -> float:
    """One step; its loss."""
    for phase in session.phases:
        phase.run()
    return session.facts().loss


def parameters(session: ChainerSession) -> dict[str, np.ndarray]:
    """All parameters by name, filters as (K, C, R, S)."""
    channels_last = session.step.model.parts.spec.layout == "NHWC"
    by_name = {}
    masters = session.step.optimizer.masters()
    for name, parameter in session.step.model.namedparams():
        # Where there is a master copy it is what trains; the stored float16 weights are its rounding.
        master = masters[id(parameter)]
        array = on_host(master).astype(np.float64)
        by_name[name] = array.transpose(0, 3, 1, 2).copy() if channels_last and array.ndim == 4 else array.copy()
    return by_name


def running_statistics(session: ChainerSession) -> dict[str, np.ndarray]:
    """Mean and variance of every batch normalisation."""
    by_name = {}
    for path, link in session.step.model.namedlinks():
        if hasattr(link, "running"):
            by_name[f"{path}/mean"] = on_host(link.running.mean).astype(np.float64)
            by_name[f"{path}/var"] = on_host(link.running.var).astype(np.float64)
    return by_name


def train(config: str, steps: int = 5, seed: int = 0, **cell_changes: Any) -> Trained:
    """Train from the seed's weights on the seed's batches."""
    with small_session(config, seed, **cell_changes) as session:
        before = parameters(session)
        losses = np.array([run_step(session) for _ in range(steps)])
        return Trained(losses, before, parameters(session), running_statistics(session))


def loss_distance(trained: Trained, other: Trained) -> float:
    """Largest relative distance of a step's loss."""
    return float(np.max(np.abs(trained.losses - other.losses) / np.abs(other.losses)))


def change_distance(trained: Trained, other: Trained) -> float:
    """Relative distance of what training did to the parameters, L2."""
    return float(np.linalg.norm(trained.change - other.change) / np.linalg.norm(other.change))
