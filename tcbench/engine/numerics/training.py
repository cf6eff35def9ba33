"""One training run of a technique, from a seed's weights over a seed's batches to its test accuracy.

Owns the model, the batches and how techniques become optimizers; the same code trains the small network on generated
patterns and ResNet-50 on a folder of images, on the host or on an accelerator. Counts nothing: gradients are handed to
who asks for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from tcbench.core.errors import TrainingError
from tcbench.core.numerics import BASE, Job
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.network import Network
from tcbench.engine.backends.chainer.optimizers import BatchedSGD, PerParameterSGD
from tcbench.engine.backends.chainer.parts import Optimizer, OptimizerSpec, Parts, Replica
from tcbench.engine.backends.chainer.pillow import make_chainer_feed
from tcbench.engine.backends.chainer.rungs import RUNGS
from tcbench.engine.backends.chainer.session import Step
from tcbench.engine.backends.chainer.sites import Site
from tcbench.engine.feeds.base import Feed, FeedRecipe
from tcbench.engine.feeds.dataset import scan
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.engine.models import MODELS
from tcbench.engine.models.small import SMALL_RESNET
from tcbench.engine.numerics import patterns
from tcbench.engine.numerics.flow import FlowingGradients, Observe, layers_of, on_host
from tcbench.engine.numerics.folder import split
from tcbench.engine.numerics.shards import RanksInTurn, StepsInTurn
from tcbench.engine.rung import Rung
from tcbench.engine.work import SCALE, SKIPPED
from tcbench.engine.world import current

CHECK_EVERY = 20
"""Steps between looks at what waits for a device: losses, and overflows of a static scale."""


class DivergedError(TrainingError):
    """A run that cannot go on: its loss, its gradients or the loss of its test are not finite. The losses up to the
    first that is not finite are in `losses`."""

    def __init__(self, message: str, losses: tuple[float, ...]) -> None:
        super().__init__(message)
        self.losses = losses


@dataclass(frozen=True)
class Trained:
    """The outcome of a run. `losses` are the batches', undivided; memory is the peak of training."""

    losses: tuple[float, ...]
    test_loss: float
    accuracy: float
    train_time_s: float
    peak_memory_bytes: int
    peak_memory_of: Any
    last_scale: float
    skipped_steps: int


class PatternFeed:
    """Batches of generated images: a fresh permutation each epoch, or one after the other without a generator."""

    prefetch_depth = 0
    on_device = False

    def __init__(self, images: patterns.Images, spec: FeedSpec, rng: np.random.Generator | None) -> None:
        self.epoch_size = len(images.t)
        self._images = images
        self._spec = spec
        self._rng = rng
        self._order = np.empty(0, np.int64)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        n = self._spec.batch_size
        while len(self._order) < n:
            fresh = np.arange(self.epoch_size) if self._rng is None else self._rng.permutation(self.epoch_size)
            self._order = np.concatenate([self._order, fresh])
        chosen, self._order = self._order[:n], self._order[n:]
        x = self._images.x[chosen]
        if self._spec.tensor.layout == "NHWC":
            x = x.transpose(0, 2, 3, 1)
        return np.ascontiguousarray(x, dtype=self._spec.tensor.dtype), self._images.t[chosen]

    def close(self) -> None: ...


@dataclass(frozen=True)
class Data:
    """The source of batches: to train on, for ever; to test with, `test_batches` in a fixed order."""

    train: Feed
    test: Callable[[], Feed]
    test_batches: int


def train(
    job: Job,
    site: Site,
    observe: Callable[[int, float, Callable[[Observe], None]], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trained:
    """Train and test. At the job's `observe_at`, `observe` is called with the step, its loss, and a function that hands
    that step's gradients, as the loss scale leaves them, to an `Observe`.

    Raises DivergedError where the run cannot go on, and DataError for images that cannot be read.
    """
    cell, setting, technique = job.cell, job.setting, job.technique
    rungs = [RUNGS[name] for name in cell.rungs]
    with contextlib.ExitStack() as stack:
        stack.enter_context(threadpoolctl.threadpool_limits(cell.threads))
        stack.enter_context(chainer.using_config("train", True))
        stack.enter_context(site.scope())
        # Overflows are counted and reported as a result.
        stack.enter_context(np.errstate(over="ignore", invalid="ignore"))
        parts = Parts(TensorSpec())
        for rung in rungs:
            stack.enter_context(rung.scope(cell))
            parts = rung.parts(parts, cell)
        model = _model(job, parts, site)
        site.adopt(model)
        data = _data(job, parts.spec, site, rungs)
        stack.callback(data.train.close)
        spec = OptimizerSpec(
            learning_rate=setting.learning_rate_at(0, technique.rate),
            momentum=setting.momentum,
            weight_decay=setting.weight_decay,
            build=BatchedSGD,
            # The backward pass begins with the scale over the divisor, and the update divides both out again: what
            # it applies is the sum over replicas that all see this batch.
            loss_scale=job.loss_scale / setting.loss_divisor,
            master_weights=technique.masters,
            dynamic_scale=technique.scaling == "dynamic",
            growth_interval=setting.growth_interval,
        )
        for rung in rungs:
            spec = dataclasses.replace(spec, precondition=rung.optimizer(spec, cell).precondition)
        step = _step(job, model, _optimizer(spec, model, technique.rung != BASE), data.train)
        if spec.precondition is not None:
            step.preconditioner = spec.precondition(Replica(current(), model, step.optimizer, site.reducer))
            stack.callback(step.preconditioner.close)
        begin = time.perf_counter()
        losses = _steps(job, step, observe, progress)
        train_time_s = time.perf_counter() - begin
        peak_bytes, of = site.peak_memory()
        test_loss, accuracy = _test(model, data)
        if not np.isfinite(test_loss):
            raise DivergedError(f"the test loss is {test_loss} after {setting.steps} steps", losses)
        scale, skipped = _scale_of(step.optimizer)
        return Trained(
            losses=losses,
            test_loss=test_loss,
            accuracy=accuracy,
            train_time_s=train_time_s,
            peak_memory_bytes=peak_bytes,
            peak_memory_of=of,
            last_scale=scale * setting.loss_divisor,
            skipped_steps=skipped,
        )


def _step(job: Job, model: Any, optimizer: Any, feed: Feed) -> Step:
    ranks, batch = job.setting.ranks, job.technique.batch
    if batch == "ranks":
        return RanksInTurn(model, optimizer, feed, ranks)
    return StepsInTurn(model, optimizer, feed, ranks) if batch == "turns" else Step(model, optimizer, feed)


def _steps(job: Job, step: Step, observe: Any, progress: Callable[[int], None] | None) -> tuple[float, ...]:
    losses: list[float] = []
    waiting: list[Any] = []
    observed_steps = set(job.observe_at) if observe else set()
    for number in range(job.setting.steps):
        step.optimizer.set_learning_rate(job.setting.learning_rate_at(number, job.technique.rate))
        step.io()
        step.forward()
        flowing: list[tuple[Any, str, Any]] = []
        if number in observed_steps:
            with FlowingGradients(step.model, lambda *gradient: flowing.append(gradient)):  # noqa: B023  (used at once)
                step.backward()
            _hand_over(number, step, flowing, observe)
        else:
            step.backward()
        for divide in step.preconditioner.phases if step.preconditioner else ():
            divide()
        step.update()
        waiting.append(step.loss_value)
        if len(waiting) == CHECK_EVERY or number == job.setting.steps - 1:
            _collect(job, step, losses, waiting)
            if progress:
                progress(number + 1)
    return tuple(losses)


def _hand_over(number: int, step: Step, flowing: list[tuple[Any, str, Any]], observe: Any) -> None:
    loss = float(on_host(step.loss_value))
    if not np.isfinite(loss):  # This run ends as diverged: what flows back from here tells nothing.
        return

    def to(observe_one: Observe) -> None:
        for gradient in flowing:
            observe_one(*gradient)
        for layer, parameter in layers_of(step.model):
            observe_one("weights", layer, on_host(parameter.grad))

    observe(number, loss, to)


def _overflowed(job: Job) -> str:
    scale, technique = job.loss_scale, job.technique
    if technique.scaling == "static":
        shown = f"2^{np.log2(scale):g}"
        return f"gradients overflowed float16 at a static loss scale of {shown}; lower --scale, or use a dynamic one"
    return "gradients are not finite; lower the learning rate"


def _collect(job: Job, step: Step, losses: list[float], waiting: list[Any]) -> None:
    """Bring the waiting losses over. Raises DivergedError for what is not finite."""
    _take(losses, waiting)
    waiting.clear()
    try:
        step.optimizer.check()
    except TrainingError:
        raise DivergedError(f"diverged by step {len(losses) - 1}: {_overflowed(job)}", tuple(losses)) from None


def _take(losses: list[float], more: Iterable[Any]) -> None:
    """Bring more losses over, up to the first that is not finite. Raises DivergedError that names it."""
    for loss in more:
        value = float(on_host(loss))
        if not np.isfinite(value):
            raise DivergedError(f"diverged at step {len(losses)}: the loss is {value}", tuple(losses))
        losses.append(value)


def _model(job: Job, parts: Parts, site: Site) -> Any:
    cell = job.cell
    geometry = SMALL_RESNET if cell.model == SMALL_RESNET.name else MODELS[cell.model]
    return Network(parts, geometry.stages(cell.variant, cell.n_classes), site.random(cell.seed))


def _optimizer(spec: OptimizerSpec, model: Any, half: bool) -> Optimizer:
    """All parameters at once; that update always keeps master weights, so without them one by one."""
    alone = half and not spec.master_weights
    return (PerParameterSGD if alone else BatchedSGD)(spec, model)


def _scale_of(optimizer: Any) -> tuple[float, int]:
    """The loss scale at the end, and the steps that were skipped."""
    state = on_host(optimizer.state)
    return float(state[SCALE]), int(state[SKIPPED])


def _test(model: Any, data: Data) -> tuple[float, float]:
    """Mean loss and accuracy on images that were not trained on, batch normalisation with its running statistics."""
    feed = data.test()
    losses, right = [], []
    try:
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            for _ in range(data.test_batches):
                x, t = feed.next()
                logits = on_host(model(x).array).astype(np.float64)
                labels = on_host(t)
                top = logits.max(axis=1)
                log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
                losses.append(log_sum - logits[np.arange(len(labels)), labels])
                right.append(logits.argmax(axis=1) == labels)
    finally:
        feed.close()
    return float(np.concatenate(losses).mean()), float(np.concatenate(right).mean())


def _data(job: Job, tensor: TensorSpec, site: Site, rungs: Sequence[Rung]) -> Data:
    cell, setting = job.cell, job.setting
    spec = FeedSpec(
        images=None,
        batch_size=cell.batch_size,
        image_size=cell.image_size,
        n_classes=cell.n_classes,
        tensor=tensor,
        seed=cell.seed,
        threads=cell.threads,
    )
    n_test = setting.test_images // cell.batch_size
    if setting.data is None:
        made = patterns.make(setting.train_images, setting.test_images, cell.image_size, cell.n_classes, setting.noise)
        rng = np.random.default_rng(1000 + cell.seed)
        return Data(
            site.deliver(PatternFeed(made.train, spec, rng)),
            lambda: site.deliver(PatternFeed(made.test, spec, None)),
            n_test,
        )
    shown, kept = split(scan(Path(setting.data), checked=True))
    held_out = dataclasses.replace(spec, images=kept, augment=False)
    recipe = FeedRecipe(dataclasses.replace(spec, images=shown), make_chainer_feed)
    for rung in rungs:
        recipe = rung.feed(recipe, cell)
    return Data(
        site.deliver(recipe.make()),
        lambda: site.deliver(make_chainer_feed(held_out)),
        n_test,
    )
