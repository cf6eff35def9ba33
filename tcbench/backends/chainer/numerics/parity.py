"""Every config a few steps from the same weights over the same batches: how far is each from the config without its
last rung, and from fp32?

fp32 itself is held against a run in float64, and float64's gradient against the slope of the loss, so that an op that
is wrong in every config alike is found too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tcbench.backends.chainer import ops
from tcbench.backends.chainer.compat import chainer
from tcbench.backends.chainer.numerics.flow import layers_of, on_host
from tcbench.backends.chainer.resnet import ResNet
from tcbench.backends.chainer.rungs import RUNGS
from tcbench.backends.chainer.session import ChainerSession
from tcbench.backends.chainer.sites import Host, Site
from tcbench.backends.feeds.base import Feed
from tcbench.backends.spec import FeedSpec, TensorSpec
from tcbench.errors import TcbenchError
from tcbench.models.small import WELL_CONDITIONED
from tcbench.numerics.form import BASE, Distance, ParityJob, ParityRun
from tcbench.record import Cell
from tcbench.rung import Rung

OpenSite = Callable[[Cell], Site]

_SLOPE_STEP = 1e-6
"""How far the weights are moved along the gradient, in units of their own norm: float64 leaves five digits."""


class _Float64(Rung):
    """The reference: everything in double precision, on the host."""

    name = "fp64"
    says = "double precision"
    source = "the reference of a parity run"

    def parts(self, parts: Any, settings: Any) -> Any:
        return dataclasses.replace(parts, spec=dataclasses.replace(parts.spec, dtype="float64"))


class RandomBatches:
    """Random pixels and labels, the same numbers for every layout and dtype."""

    prefetch_depth = 0
    on_device = False
    epoch_size = 1 << 30

    def __init__(self, spec: FeedSpec) -> None:
        self._spec = spec
        self._rng = np.random.default_rng(1000 + spec.seed)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        spec = self._spec
        # Pixels are exact in float16, so that every dtype trains on the same numbers.
        x = self._rng.standard_normal((spec.batch_size, 3, spec.image_size, spec.image_size)).astype(np.float16)
        t = self._rng.integers(0, spec.n_classes, spec.batch_size, dtype=np.int32)
        if spec.tensor.layout == "NHWC":
            x = x.transpose(0, 2, 3, 1)
        return np.ascontiguousarray(x, dtype=spec.tensor.dtype), t

    def close(self) -> None: ...


def make_random_feed(spec: FeedSpec) -> Feed:
    """A feed of random batches."""
    return RandomBatches(spec)


@dataclass(frozen=True)
class _Trained:
    """Losses per step; the first step's gradients and what training did to all parameters, as vectors whose order no
    layout changes."""

    losses: np.ndarray
    gradient: np.ndarray | None
    change: np.ndarray


def compare(job: ParityJob, open_site: OpenSite, progress: Callable[[int], None]) -> tuple[ParityRun, ...]:
    """Distances of every cell of the job, in order. A config that raises is a run with its reason."""
    trained: dict[str, _Trained] = {}
    trained["fp64"] = _train(job.cell, [_Float64()], Host(), job.steps)
    fp32 = msgspec.structs.replace(job.cell, rungs=(BASE,))
    trained[BASE] = _train(fp32, [RUNGS[BASE]], open_site(fp32), job.steps)
    runs = []
    for done, one in enumerate(job.cells, start=1):
        cell = one.cell
        common: dict[str, Any] = {"config": cell.config, "rung": one.rung, "without": one.without, "asked": one.asked}
        half = "fp16" in cell.rungs
        try:
            if cell.config not in trained:
                rungs = [RUNGS[name] for name in cell.rungs]
                trained[cell.config] = _train(cell, rungs, open_site(cell), job.steps)
        except Exception as error:
            reason = str(error) if isinstance(error, TcbenchError) else f"{type(error).__name__}: {error}"
            runs.append(ParityRun(**common, half=half, reason=" ".join(reason.split())))
            continue
        mine, base = trained[cell.config], trained.get(one.without or "fp64")
        if base is None:
            runs.append(ParityRun(**common, half=half, reason=f"{one.without} did not run"))
            continue
        runs.append(
            ParityRun(**common, half=half, to_without=_distance(mine, base), to_fp32=_distance(mine, trained[BASE]))
        )
        progress(done)
    return tuple(runs)


def slope_error(job: ParityJob) -> float:
    """The relative error of the gradient against the loss's slope along it, central difference, in float64."""
    with _session(job.cell, [_Float64()], Host()) as session:
        step = session.step
        step.io()
        step.forward()
        step.backward()
        parameters = list(step.model.params())
        gradient = np.concatenate([p.grad.ravel() for p in parameters])
        norm = float(np.linalg.norm(gradient))
        weights = float(np.sqrt(sum(float((p.array.astype(np.float64) ** 2).sum()) for p in parameters)))
        moved = _SLOPE_STEP * weights
        losses = []
        with chainer.no_backprop_mode():
            for sign in (1, -2):
                for p in parameters:
                    p.array += sign * moved / norm * p.grad
                losses.append(float(ops.softmax_cross_entropy(step.model(step.x), step.t).array))
    return abs((losses[0] - losses[1]) / (2 * moved) - norm) / norm


def _distance(one: _Trained, other: _Trained) -> Distance:
    gradient = None
    if one.gradient is not None and other.gradient is not None:
        gradient = _relative(one.gradient, other.gradient)
    loss = float(np.max(np.abs(one.losses - other.losses) / np.abs(other.losses)))
    update = _relative(one.change, other.change)
    finite = bool(np.isfinite([loss, update, gradient or 0.0]).all())
    if not finite:
        return Distance(loss=0.0, update=0.0, finite=False)
    return Distance(loss=loss, update=update, gradient=gradient)


def _relative(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@contextlib.contextmanager
def _session(cell: Cell, rungs: list[Any], site: Site) -> Iterator[ChainerSession]:
    session = ChainerSession(
        cell,
        site,
        rungs=rungs,
        model_class=functools.partial(ResNet, geometry=WELL_CONDITIONED),
        make_feed=make_random_feed,
    )
    try:
        yield session
    finally:
        session.close()


def _train(cell: Cell, rungs: list[Any], site: Site, steps: int) -> _Trained:
    with _session(cell, rungs, site) as session:
        step = session.step
        before = _parameters(step)
        losses, gradient = [], None
        for number in range(steps):
            for phase in session.phases:
                phase.run()
                if number == 0 and phase.name == "backward":
                    gradient = _gradients(step, cell.train.loss_scale if "fp16" in cell.rungs else 1.0)
            losses.append(float(on_host(step.loss_value)))
        return _Trained(np.array(losses), gradient, _parameters(step) - before)


def _parameters(step: Any) -> np.ndarray:
    """All parameters as one vector: where there is a master copy, it is what trains."""
    masters = step.optimizer.masters() if hasattr(step.optimizer, "masters") else {}

    def of(parameter: Any) -> Any:
        chainers = getattr(parameter.update_rule, "_fp32_param", None)
        return chainers.array if chainers is not None else masters.get(id(parameter), parameter.array)

    return _vector(step, of)


def _gradients(step: Any, loss_scale: float) -> np.ndarray:
    return _vector(step, lambda parameter: parameter.grad) / loss_scale


def _vector(step: Any, of: Callable[[Any], Any]) -> np.ndarray:
    """Float64, filters as (K, C, R, S) whatever the layout."""
    tensor: TensorSpec = step.model.parts.spec
    parts = []
    for _, parameter in layers_of(step.model):
        array = np.asarray(on_host(of(parameter)), np.float64)
        parts.append((array.transpose(0, 3, 1, 2) if tensor.layout == "NHWC" and array.ndim == 4 else array).ravel())
    return np.concatenate(parts)
