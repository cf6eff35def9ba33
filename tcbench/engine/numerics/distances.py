"""The parity run: each config takes a few steps from the same weights on the same batches.

It measures how far each config is from the config without its last rung and from fp32, observes what its session does,
and checks that its optimizer does what its rungs declare. fp32 itself is compared with a run in float64. Tests compare
each operation in float64 with Chainer's functions."""

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
from tcbench.engine.numerics.flow import layer_parameters, on_host
from tcbench.engine.rung import Rung, Update, sgd, storage_of
from tcbench.engine.work import HALVES

OpenSite = Callable[[Cell], OpenDevice]

GRADIENT_BATCHES = 5
"""The number of batches whose gradients are compared at the first weights. In float32, rounding moves an activation
across ReLU's kink in one of twenty batches, which changes a gradient by a hundredth. A bug changes all batches."""

_OPTIMIZER_SETTINGS = TrainSettings(learning_rate=0.01, momentum=0.9, weight_decay=0.5)
"""Settings for comparing optimizers. Weight decay is a third of a step, so that its absence is noticed. A step is a
hundredth of a weight, so that rounding in float16 without master weights is noticed."""
_GRADIENT_SCALE, _OPTIMIZER_STEPS = 0.1, 3


class _Float64(Rung):
    """The rung of the reference: double precision on the host."""

    name = "fp64"
    says = "double precision"
    source = "the reference of a parity run"

    def parts(self, parts: Any, settings: Any) -> Any:
        return dataclasses.replace(parts, spec=dataclasses.replace(parts.spec, dtype="float64"))


class RandomBatches(Feed):
    """A feed of random pixels and labels, which are the same for every layout and dtype."""

    def __init__(self, spec: FeedSpec) -> None:
        self._spec = spec
        self._rng = np.random.default_rng(1000 + spec.seed)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the next batch."""
        spec = self._spec
        # The pixels are exact in bfloat16 and float16, so that every dtype trains on the same ones.
        x = self._rng.standard_normal((spec.batch_size, 3, spec.image_size, spec.image_size))
        x = x.astype("bfloat16").astype(np.float16)
        t = self._rng.integers(0, spec.n_classes, spec.batch_size, dtype=np.int32)
        return spec.tensor.stored(x), t


_ByParameter = dict[str, np.ndarray]
"""A vector per parameter by name ("stem.w", "block1.b.gamma"). The order of its elements is the same for all
layouts."""


@dataclass(frozen=True)
class _Trained:
    """The result of training a config.

    - `losses`: of each step.
    - `gradients`: of some batches at the first weights.
    - `change`: the difference between the last and the first values of each parameter.
    - `seen`: observed properties of the session.
    - `optimizer_distance`: the largest relative distance of the optimizer from the rungs' `reference_update`, and the
      parameter that has it."""

    losses: np.ndarray
    gradients: tuple[_ByParameter, ...]
    change: _ByParameter
    seen: dict[str, str]
    optimizer_distance: tuple[float, str]


def compare(job: ParityJob, open_site: OpenSite, progress: Callable[[int], None]) -> tuple[ParityRun, ...]:
    """Return the distances of every cell of the job, in order. The result for a config that fails, or whose
    comparison config has failed, has the reason instead.

    `open_site` opens the device of a cell. `progress` is called with the number of cells so far, after each cell that
    ran."""
    trained: dict[str, _Trained] = {}
    fp32 = _base_cell(job)
    trained["fp64"] = _train(fp32, [_Float64()], processor(job.cell.threads), job.steps)
    trained[BASE] = _train(fp32, [RUNGS[BASE]], open_site(fp32), job.steps)
    runs = []
    for done, parity_cell in enumerate(job.cells, start=1):
        cell, rung, without = parity_cell.cell, RUNGS[parity_cell.rung], parity_cell.without
        common: dict[str, Any] = {"config": cell.config, "rung": rung.name, "without": without}
        common |= {"in_scenario": parity_cell.in_scenario, "storage": storage_of(RUNGS[name] for name in cell.rungs)}
        try:
            if cell.config not in trained:
                rungs = [RUNGS[name] for name in cell.rungs]
                trained[cell.config] = _train(cell, rungs, open_site(cell), job.steps)
        except Exception as error:
            reason = str(error) if isinstance(error, TcbenchError) else f"{type(error).__name__}: {error}"
            runs.append(ParityRun(**common, reason=" ".join(reason.split())))
            continue
        # `base` is the config without the rung or, for fp32, the run in float64.
        current_run, base = trained[cell.config], trained.get(without or "fp64")
        if base is None:
            runs.append(ParityRun(**common, reason=f"{without} did not run"))
            continue
        reference = _in_float64(job, rung, trained) if rung.parity.kind == "other" else base
        runs.append(
            ParityRun(
                **common,
                to_without=_distance(current_run, reference),
                to_fp32=_distance(current_run, trained[BASE]),
                seen=current_run.seen,
                seen_without=base.seen if without else {},
                optimizer_distance=current_run.optimizer_distance[0],
                optimizer_parameter=current_run.optimizer_distance[1],
            )
        )
        progress(done)
    return tuple(runs)


def _in_float64(job: ParityJob, rung: Rung, trained: dict[str, _Trained]) -> _Trained:
    """Return the result of training with a rung in double precision. It is the reference for a rung that changes what
    training computes."""
    name = f"fp64+{rung.name}"
    if name not in trained:
        trained[name] = _train(_base_cell(job), [_Float64(), rung], processor(job.cell.threads), job.steps)
    return trained[name]


def _base_cell(job: ParityJob) -> Cell:
    """Return the job's cell with the base config, without rungs such as loss scaling."""
    return msgspec.structs.replace(job.cell, config=BASE, rungs=(BASE,))


def _distance(run: _Trained, reference: _Trained) -> Distance:
    """Return how far a run's losses, its change of the parameters, and its first gradients are from a reference's. If
    one of these distances is not finite, the result has only `finite=False`; its zeros mean nothing."""
    loss = float(np.max(np.abs(run.losses - reference.losses) / np.abs(reference.losses)))
    update = _relative(np.concatenate([*run.change.values()]), np.concatenate([*reference.change.values()]))
    gradient = length = gradient_of = length_of = None
    # If activations are NaN, ReLU passes no gradients, and all gradients are 0.
    finite = bool(np.isfinite([loss, update]).all())
    if finite and run.gradients and reference.gradients:
        gradient, gradient_of = _farthest(run.gradients, reference.gradients)
        length, length_of = _farthest_length(run.gradients, reference.gradients)
        finite = bool(np.isfinite([gradient, length]).all())
    if not finite:
        return Distance(loss=0.0, update=0.0, finite=False)
    return Distance(
        loss=loss, update=update, gradient=gradient, gradient_of=gradient_of, length=length, length_of=length_of
    )


def _farthest(run: tuple[_ByParameter, ...], reference: tuple[_ByParameter, ...]) -> tuple[float, str]:
    """Return the largest relative L2 distance of a parameter's gradients, and the parameter.

    `run` and `reference` have gradients of the same batches. A parameter's distance is the lower quartile over the
    batches, so that activations that cross a kink in some batches do not count."""
    distances = {
        name: float(np.quantile([_relative(a[name], b[name]) for a, b in zip(run, reference, strict=True)], 0.25))
        for name in run[0]
    }
    return _largest(distances)


def _farthest_length(run: tuple[_ByParameter, ...], reference: tuple[_ByParameter, ...]) -> tuple[float, str]:
    """Compare the L2 norm of the gradients, over all batches and by kind of parameter (`_kind`), with the reference's.
    Return the largest relative difference, and the kind that has it."""
    kinds = grouped((_kind(name), name) for name in run[0])

    def squares(gradients: tuple[_ByParameter, ...], names: list[str]) -> float:
        return sum(float(np.sum(np.square(batch[name], dtype=np.float64))) for batch in gradients for name in names)

    return _largest(
        {kind: abs(np.sqrt(squares(run, names) / squares(reference, names)) - 1) for kind, names in kinds.items()}
    )


def _kind(name: str) -> str:
    """Return the kind of a parameter: "stem.w", "a.w", "gamma". One operation computes all gradients of a kind."""
    *_, layer, parameter = name.split(".")
    return f"{layer}.{parameter}" if parameter in ("w", "b") else parameter


def _largest(distances: dict[str, float]) -> tuple[float, str]:
    """Return the largest distance and its name. NaN counts as larger than any number."""
    name = max(distances, key=lambda name: np.inf if np.isnan(distances[name]) else distances[name])
    return float(distances[name]), name


def _relative(vector: np.ndarray, reference: np.ndarray) -> float:
    """Return the relative L2 distance of a vector from a reference."""
    return float(np.linalg.norm(vector - reference) / np.linalg.norm(reference))


def _session(cell: Cell, rungs: list[Any], site: OpenDevice) -> contextlib.closing[ChainerSession]:
    """Open a session that trains the well-conditioned network on random batches."""
    return contextlib.closing(
        ChainerSession(cell, site, rungs=rungs, geometry=WELL_CONDITIONED, make_feed=RandomBatches)
    )


def _train(cell: Cell, rungs: list[Any], site: OpenDevice, steps: int) -> _Trained:
    """Train a config for some steps. Then compare its optimizer, in a new session, with the rungs' update."""
    with _session(cell, rungs, site) as session:
        step = session.step
        before = _by_parameter(step, _trained_array(step))
        gradients, seen = _observe_gradients(session, cell.train.loss_scale if "fp16" in cell.rungs else 1.0)
        losses = []
        for _ in range(steps):
            for phase in session.phases:
                phase.run()
            losses.append(float(on_host(step.loss_value)))
        after = _by_parameter(step, _trained_array(step))
        change = {name: after[name] - values for name, values in before.items()}
        seen |= _optimizer_properties(step)
    train = msgspec.structs.replace(_OPTIMIZER_SETTINGS, loss_scale=cell.train.loss_scale)
    with _session(msgspec.structs.replace(cell, train=train), rungs, site) as session:
        update = functools.reduce(lambda update, rung: rung.reference_update(update), rungs, sgd)
        optimizer_distance = _optimizer_error(
            session.step, train, train.loss_scale if "fp16" in cell.rungs else 1.0, update
        )
    return _Trained(np.array(losses), gradients, change, seen, optimizer_distance)


class _AppliedFunctions(chainer.FunctionHook):
    """A context that records the functions that Chainer applies, and their inputs."""

    name = "tcbench.applied"

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[Any, Any]] = []

    def forward_preprocess(self, function: Any, in_data: Any) -> None:
        self.all.append((function, in_data))

    def instances(self, *classes: str) -> list[tuple[Any, Any]]:
        """Return the recorded functions of these classes with their inputs."""
        return [(function, inputs) for function, inputs in self.all if type(function).__name__ in classes]


def _observe_gradients(session: ChainerSession, loss_scale: float) -> tuple[tuple[_ByParameter, ...], dict[str, str]]:
    """Return the unscaled gradients of some batches at the same weights, and observed properties of a step. If forward,
    backward and update are one launch, no gradients can be read. The batches are still taken from the feed, so that
    every config trains on the same ones."""
    step = session.step
    compute = [phase for phase in session.phases if phase.name != "update"]
    if "backward" not in {phase.name for phase in compute}:
        for _ in range(GRADIENT_BATCHES):
            step.io()
        return (), {"launches": "one"}
    gradients = []
    hooks = []
    for _ in range(GRADIENT_BATCHES):
        with _AppliedFunctions() as hook:
            for phase in compute:
                phase.run()
        hooks.append(hook)
        batch = _by_parameter(step, lambda parameter: parameter.grad)
        # float32 is exact for what configs store, and precise enough for float64.
        gradients.append({name: (values / loss_scale).astype(np.float32) for name, values in batch.items()})
    return tuple(gradients), {"launches": "several", **_function_properties(*hooks[:2])}


_CONVOLUTIONS = ("Convolution", "ConvolutionStats", "Im2colConvolution")


def _function_properties(first: _AppliedFunctions, second: _AppliedFunctions) -> dict[str, str]:
    """Return observed properties of a session by name, from the functions applied in its first and second step."""
    convolutions = first.instances(*_CONVOLUTIONS)
    function, (x, w) = convolutions[0]
    filters_last = x.shape[3] == w.shape[3] and x.shape[1] != w.shape[1]  # x and w agree in their channels
    return {
        "storage": " and ".join(sorted({str(array.dtype) for _, inputs in convolutions for array in inputs})),
        "layout": "NHWC" if filters_last else "NCHW",
        "math": str(function.math),
        "convolution": "im2col" if first.instances("Im2colConvolution") else "one operation",
        "ReLU": "apart" if first.instances("Relu") else "fused",
        "batch statistics": "from the convolution" if first.instances("ConvolutionStats") else "from its output",
        "graph": "built" if second.instances(*_CONVOLUTIONS) else "replayed",
    }


def _optimizer_properties(step: Any) -> dict[str, str]:
    """Return observed properties of a session by name, from the step's optimizer."""
    optimizer = step.optimizer
    trained_array = _trained_array(step)
    masters = {str(trained_array(p).dtype) for _, p in _parameters(step.model) if str(p.array.dtype) in HALVES}
    at_once = isinstance(optimizer, BatchedSGD)
    dynamic = at_once and optimizer.spec.dynamic_scale
    return {
        "update": "all parameters at once" if at_once else "parameter by parameter",
        "master weights": " and ".join(sorted(masters - {*HALVES})) or "none",
        "loss scale": "dynamic" if dynamic else "static",
        "gradients": "as they are" if step.preconditioner is None else "divided by curvature",
    }


def _optimizer_error(step: Any, train: TrainSettings, loss_scale: float, update: Update) -> tuple[float, str]:
    """Make a few updates with random gradients, by the step's optimizer and by `update` in float64.

    Return the largest relative distance between the two changes of a parameter, and the parameter."""
    trained_array = _trained_array(step)
    # One pass makes gradients, whose dtypes are needed below.
    step.io()
    step.forward()
    step.backward()
    rng = np.random.default_rng(1)
    accelerator = current()
    before = _by_parameter(step, trained_array)
    expected = dict(before)
    states: dict[str, Any] = dict.fromkeys(before)
    for _ in range(_OPTIMIZER_STEPS):
        for name, parameter in _parameters(step.model):
            # The loss scale is a power of two, so that both sides get exactly the same gradient.
            random = (_GRADIENT_SCALE * loss_scale * rng.standard_normal(parameter.shape)).astype(parameter.grad.dtype)
            parameter.grad = accelerator.upload(random)
            expected[name], states[name] = update(expected[name], _flat(step, random) / loss_scale, states[name], train)
        step.optimizer.update()
    after = _by_parameter(step, trained_array)
    return _largest({name: _relative(after[name] - before[name], expected[name] - before[name]) for name in before})


def _trained_array(step: Any) -> Callable[[Any], Any]:
    """Return a function from a parameter to the array that is updated: its master copy, if it has one."""
    masters = step.optimizer.masters()
    return lambda parameter: masters[id(parameter)]


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield each parameter with its name: "stem.w", "block1.b.gamma"."""
    for layer, parameter in layer_parameters(model):
        yield f"{layer}.{parameter.name}", parameter


def _by_parameter(step: Any, array_of: Callable[[Any], Any]) -> _ByParameter:
    """Return a vector for each parameter: a copy of the array that `array_of` returns for it."""
    return {name: _flat(step, on_host(array_of(parameter))) for name, parameter in _parameters(step.model)}


def _flat(step: Any, array: Any) -> np.ndarray:
    """Return a copy in float64 as a vector. Filters are in the order (K, C, R, S) for all layouts."""
    values = np.array(array, np.float64)
    last = step.model.parts.spec.layout == "NHWC" and values.ndim == 4
    return (values.transpose(0, 3, 1, 2) if last else values).ravel()
