"""Every config a few steps from the same weights over the same batches: how far is each from the config without its
last rung, and from fp32? What is it seen to do, and does its optimizer do what its rungs declare?

fp32 itself is compared with a run in float64. Tests compare each operation in float64 with Chainer's functions."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tcbench.core.errors import TcbenchError
from tcbench.core.groups import grouped
from tcbench.core.numerics import BASE, Distance, ParityJob, ParityRun
from tcbench.core.record import Cell, TrainSettings
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.accelerators.protocol import current
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.optimizers import BatchedSGD
from tcbench.engine.backends.chainer.rungs import RUNGS
from tcbench.engine.backends.chainer.session import ChainerSession
from tcbench.engine.backends.chainer.sites import processor
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.spec import FeedSpec
from tcbench.engine.models.small import WELL_CONDITIONED
from tcbench.engine.numerics.flow import layers_of, on_host
from tcbench.engine.rung import Rung, Update, sgd, storage_of
from tcbench.engine.work import HALVES

OpenSite = Callable[[Cell], OpenDevice]

GRADIENT_BATCHES = 5
"""Batches whose gradients are compared at the first weights. In float32, rounding takes a value across ReLU's kink in
one of twenty, and a gradient then differs by a hundredth; what is wrong differs in all of them."""

_GIVEN = TrainSettings(learning_rate=0.01, momentum=0.9, weight_decay=0.5)
"""Settings for comparing optimizers. Weight decay is a third of a step, so that it is missed where it is missing;
a step is a hundredth of a weight, so that float16 alone is seen to round it away."""
_GIVEN_GRADIENT, _GIVEN_STEPS = 0.1, 3


class _Float64(Rung):
    """The reference: everything in double precision, on the host."""

    name = "fp64"
    says = "double precision"
    source = "the reference of a parity run"

    def parts(self, parts: Any, settings: Any) -> Any:
        return dataclasses.replace(parts, spec=dataclasses.replace(parts.spec, dtype="float64"))


class RandomBatches(Feed):
    """Random pixels and labels, the same numbers for every layout and dtype."""

    def __init__(self, spec: FeedSpec) -> None:
        self._spec = spec
        self._rng = np.random.default_rng(1000 + spec.seed)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        spec = self._spec
        # Pixels are exact in bfloat16 and in float16, so that every dtype trains on the same numbers.
        x = self._rng.standard_normal((spec.batch_size, 3, spec.image_size, spec.image_size))
        x = x.astype("bfloat16").astype(np.float16)
        t = self._rng.integers(0, spec.n_classes, spec.batch_size, dtype=np.int32)
        return spec.tensor.stored(x), t


_ByParameter = dict[str, np.ndarray]
"""Each parameter's values by its name ("stem.w", "block1.b.gamma"), as a vector whose order no layout changes."""


@dataclass(frozen=True)
class _Trained:
    """Losses per step; gradients at the first weights, for some batches; what training did to all parameters; what the
    session was seen to do; and the distance of its optimizer from the rungs' update, with the parameter where it is
    largest."""

    losses: np.ndarray
    gradients: tuple[_ByParameter, ...]
    change: _ByParameter
    seen: dict[str, str]
    optimizer: tuple[float, str]


def compare(job: ParityJob, open_site: OpenSite, progress: Callable[[int], None]) -> tuple[ParityRun, ...]:
    """Distances of every cell of the job, in order. A config that raises is a run with its reason."""
    trained: dict[str, _Trained] = {}
    fp32 = _of_base(job)
    trained["fp64"] = _train(fp32, [_Float64()], processor(job.cell.threads), job.steps)
    trained[BASE] = _train(fp32, [RUNGS[BASE]], open_site(fp32), job.steps)
    runs = []
    for done, one in enumerate(job.cells, start=1):
        cell = one.cell
        common: dict[str, Any] = {"config": cell.config, "rung": one.rung, "without": one.without}
        common |= {"in_scenario": one.in_scenario, "storage": storage_of(RUNGS[name] for name in cell.rungs)}
        try:
            if cell.config not in trained:
                rungs = [RUNGS[name] for name in cell.rungs]
                trained[cell.config] = _train(cell, rungs, open_site(cell), job.steps)
        except Exception as error:
            reason = str(error) if isinstance(error, TcbenchError) else f"{type(error).__name__}: {error}"
            runs.append(ParityRun(**common, reason=" ".join(reason.split())))
            continue
        mine, base = trained[cell.config], trained.get(one.without or "fp64")
        if base is None:
            runs.append(ParityRun(**common, reason=f"{one.without} did not run"))
            continue
        of = _itself_in_float64(job, RUNGS[one.rung], trained) if RUNGS[one.rung].parity.kind == "other" else base
        runs.append(
            ParityRun(
                **common,
                to_without=_distance(mine, of),
                to_fp32=_distance(mine, trained[BASE]),
                seen=mine.seen,
                seen_without=base.seen if one.without else {},
                optimizer=mine.optimizer[0],
                optimizer_of=mine.optimizer[1],
            )
        )
        progress(done)
    return tuple(runs)


def _itself_in_float64(job: ParityJob, rung: Rung, trained: dict[str, _Trained]) -> _Trained:
    """The run of a rung that trains otherwise, in double precision."""
    name = f"fp64+{rung.name}"
    if name not in trained:
        trained[name] = _train(_of_base(job), [_Float64(), rung], processor(job.cell.threads), job.steps)
    return trained[name]


def _of_base(job: ParityJob) -> Cell:
    """The job's cell as of the base: what else its config has, such as a scaled loss, is not double precision's."""
    return msgspec.structs.replace(job.cell, config=BASE, rungs=(BASE,))


def _distance(one: _Trained, other: _Trained) -> Distance:
    loss = float(np.max(np.abs(one.losses - other.losses) / np.abs(other.losses)))
    update = _relative(np.concatenate([*one.change.values()]), np.concatenate([*other.change.values()]))
    gradient = length = gradient_of = length_of = None
    # Where activations are NaN, ReLU lets no gradient through: there are only zeros to compare.
    finite = bool(np.isfinite([loss, update]).all())
    if finite and one.gradients and other.gradients:
        gradient, gradient_of = _farthest(one.gradients, other.gradients)
        length, length_of = _length(one.gradients, other.gradients)
        finite = bool(np.isfinite([gradient, length]).all())
    if not finite:
        return Distance(loss=0.0, update=0.0, finite=False)
    return Distance(
        loss=loss, update=update, gradient=gradient, gradient_of=gradient_of, length=length, length_of=length_of
    )


def _farthest(ones: tuple[_ByParameter, ...], others: tuple[_ByParameter, ...]) -> tuple[float, str]:
    """The largest distance of a parameter's gradients and its name: the lower quartile of the batches', so that a kink
    crossed in some of them does not count."""
    far = {
        name: float(np.quantile([_relative(a[name], b[name]) for a, b in zip(ones, others, strict=True)], 0.25))
        for name in ones[0]
    }
    return _largest(far)


def _length(ones: tuple[_ByParameter, ...], others: tuple[_ByParameter, ...]) -> tuple[float, str]:
    """The largest factor by which the gradients of one kind of parameter are too long or too short, and the kind."""
    kinds = grouped((_kind(name), name) for name in ones[0])

    def squares(gradients: tuple[_ByParameter, ...], names: list[str]) -> float:
        return sum(float(np.sum(np.square(one[name], dtype=np.float64))) for one in gradients for name in names)

    far = {kind: abs(np.sqrt(squares(ones, names) / squares(others, names)) - 1) for kind, names in kinds.items()}
    return _largest(far)


def _kind(name: str) -> str:
    """The name of parameters whose gradients are made by one operation: "stem.w", "a.w", "gamma"."""
    *_, layer, parameter = name.split(".")
    return f"{layer}.{parameter}" if parameter in ("w", "b") else parameter


def _largest(values: dict[str, float]) -> tuple[float, str]:
    """The largest and its name; the first that is not a number before all."""
    name = max(values, key=lambda one: np.inf if np.isnan(values[one]) else values[one])
    return float(values[name]), name


def _relative(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def _session(cell: Cell, rungs: list[Any], site: OpenDevice) -> contextlib.closing[ChainerSession]:
    return contextlib.closing(
        ChainerSession(cell, site, rungs=rungs, geometry=WELL_CONDITIONED, make_feed=RandomBatches)
    )


def _train(cell: Cell, rungs: list[Any], site: OpenDevice, steps: int) -> _Trained:
    with _session(cell, rungs, site) as session:
        step = session.step
        before = _of_all(step, _trains_in(step))
        gradients, seen = _observe_gradients(session, cell.train.loss_scale if "fp16" in cell.rungs else 1.0)
        losses = []
        for _ in range(steps):
            for phase in session.phases:
                phase.run()
            losses.append(float(on_host(step.loss_value)))
        after = _of_all(step, _trains_in(step))
        change = {name: after[name] - values for name, values in before.items()}
        seen |= _seen_of_optimizer(step)
    train = msgspec.structs.replace(_GIVEN, loss_scale=cell.train.loss_scale)
    given = msgspec.structs.replace(cell, train=train)
    with _session(given, rungs, site) as session:
        update = functools.reduce(lambda before, rung: rung.applies(before), rungs, sgd)
        optimizer = _optimizer_error(session.step, train, train.loss_scale if "fp16" in cell.rungs else 1.0, update)
    return _Trained(np.array(losses), gradients, change, seen, optimizer)


class _Applied(chainer.FunctionHook):
    """The functions that are applied while it is held, and what they are given."""

    name = "tcbench.applied"

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[Any, Any]] = []

    def forward_preprocess(self, function: Any, in_data: Any) -> None:
        self.all.append((function, in_data))

    def of(self, *classes: str) -> list[tuple[Any, Any]]:
        return [(function, inputs) for function, inputs in self.all if type(function).__name__ in classes]


def _observe_gradients(session: ChainerSession, loss_scale: float) -> tuple[tuple[_ByParameter, ...], dict[str, str]]:
    """Gradients of some batches as they are applied, and what a step is seen to do; nothing is updated. Where forward,
    backward and update are one launch there are no gradients to be had, but the batches are gone all the same."""
    step = session.step
    compute = [phase for phase in session.phases if phase.name != "update"]
    if "backward" not in {phase.name for phase in compute}:
        for _ in range(GRADIENT_BATCHES):
            step.io()
        return (), {"launches": "one"}
    gradients = []
    hooks = []
    for _ in range(GRADIENT_BATCHES):
        with _Applied() as hook:
            for phase in compute:
                phase.run()
        hooks.append(hook)
        one = _of_all(step, lambda parameter: parameter.grad)
        # Float32 holds what any config stores, and float64 to more digits than are compared.
        gradients.append({name: (values / loss_scale).astype(np.float32) for name, values in one.items()})
    return tuple(gradients), {"launches": "several", **_seen_of_functions(*hooks[:2])}


_CONVOLUTIONS = ("Convolution", "ConvolutionStats", "Im2colConvolution")


def _seen_of_functions(first: _Applied, second: _Applied) -> dict[str, str]:
    """Observations of the functions of the first and second step."""
    convolutions = first.of(*_CONVOLUTIONS)
    function, (x, w) = convolutions[0]
    filters_last = x.shape[3] == w.shape[3] and x.shape[1] != w.shape[1]
    return {
        "storage": " and ".join(sorted({str(array.dtype) for _, inputs in convolutions for array in inputs})),
        "layout": "NHWC" if filters_last else "NCHW",
        "math": str(function.math),
        "convolution": "im2col" if first.of("Im2colConvolution") else "one operation",
        "ReLU": "apart" if first.of("Relu") else "fused",
        "batch statistics": "from the convolution" if first.of("ConvolutionStats") else "from its output",
        "graph": "built" if second.of(*_CONVOLUTIONS) else "replayed",
    }


def _seen_of_optimizer(step: Any) -> dict[str, str]:
    optimizer = step.optimizer
    trains_in = _trains_in(step)
    masters = {str(trains_in(p).dtype) for _, p in _named(step.model) if str(p.array.dtype) in HALVES}
    at_once = isinstance(optimizer, BatchedSGD)
    dynamic = at_once and optimizer.spec.dynamic_scale
    return {
        "update": "all parameters at once" if at_once else "parameter by parameter",
        "master weights": " and ".join(sorted(masters - {*HALVES})) or "none",
        "loss scale": "dynamic" if dynamic else "static",
        "gradients": "as they are" if step.preconditioner is None else "divided by curvature",
    }


def _optimizer_error(step: Any, train: TrainSettings, loss_scale: float, update: Update) -> tuple[float, str]:
    """Distance of a few updates from given gradients to those of `update` in float64."""
    trains_in = _trains_in(step)
    # So that there are gradients, whose dtypes are asked for.
    step.io()
    step.forward()
    step.backward()
    rng = np.random.default_rng(1)
    accelerator = current()
    before = _of_all(step, trains_in)
    right = dict(before)
    states: dict[str, Any] = dict.fromkeys(before)
    for _ in range(_GIVEN_STEPS):
        for name, parameter in _named(step.model):
            # A power of two more would be exact too: what is given to float16 is what float64 is given.
            given = (_GIVEN_GRADIENT * loss_scale * rng.standard_normal(parameter.shape)).astype(parameter.grad.dtype)
            parameter.grad = accelerator.upload(given)
            right[name], states[name] = update(right[name], _flat(step, given) / loss_scale, states[name], train)
        step.optimizer.update()
    after = _of_all(step, trains_in)
    return _largest({name: _relative(after[name] - before[name], right[name] - before[name]) for name in before})


def _trains_in(step: Any) -> Callable[[Any], Any]:
    """The array that a parameter trains in: its master copy where there is one."""
    masters = step.optimizer.masters()
    return lambda parameter: masters[id(parameter)]


def _named(model: Any) -> Iterator[tuple[str, Any]]:
    """Each parameter with its name: "stem.w", "block1.b.gamma"."""
    for layer, parameter in layers_of(model):
        yield f"{layer}.{parameter.name}", parameter


def _of_all(step: Any, of: Callable[[Any], Any]) -> _ByParameter:
    return {name: _flat(step, on_host(of(parameter))) for name, parameter in _named(step.model)}


def _flat(step: Any, array: Any) -> np.ndarray:
    """A copy in float64, filters as (K, C, R, S) whatever the layout."""
    values = np.array(array, np.float64)
    last = step.model.parts.spec.layout == "NHWC" and values.ndim == 4
    return (values.transpose(0, 3, 1, 2) if last else values).ravel()
