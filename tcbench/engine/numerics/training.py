"""A training run of a technique, from the initial weights to the test accuracy.

This module makes the model, the batches and the technique's optimizer. It trains a small network on generated patterns
and ResNet-50 on a folder of images, on the host or on a device. Observers may look at the gradients."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tcbench.core.errors import TrainingError
from tcbench.core.numerics import BASE, Run, TrainingJob
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.optimizers import BatchedSGD, OptimizerSpec, PerParameterSGD
from tcbench.engine.backends.chainer.pillow import ChainerFeed
from tcbench.engine.backends.chainer.session import ChainerSession, ChainerStep
from tcbench.engine.backends.chainer.sites import deliver
from tcbench.engine.feeds.base import Feed, FeedRecipe
from tcbench.engine.feeds.dataset import scan
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.engine.models.small import SMALL_RESNET
from tcbench.engine.numerics import patterns
from tcbench.engine.numerics.flow import FlowingGradients, Observe, layer_parameters, on_host
from tcbench.engine.numerics.folder import split
from tcbench.engine.numerics.shards import RanksInTurn, StepsInTurn
from tcbench.engine.work import SCALE, SKIPPED

CHECK_EVERY = 20
"""The number of steps between checks of losses and overflows, which wait for the device."""


class DivergedError(TrainingError):
    """A loss or gradients are not finite, so that the run cannot continue. `losses` has the earlier ones."""

    def __init__(self, message: str, losses: tuple[float, ...]) -> None:
        super().__init__(message)
        self.losses = losses


class PatternFeed(Feed):
    """A feed of generated images: shuffled in each epoch by the random generator, or in a fixed order without one."""

    def __init__(self, images: patterns.Images, spec: FeedSpec, rng: np.random.Generator | None) -> None:
        self._images = images
        self._spec = spec
        self._rng = rng
        self._order = np.empty(0, np.int64)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the next batch."""
        n = self._spec.batch_size
        while len(self._order) < n:
            size = len(self._images.t)
            epoch = np.arange(size) if self._rng is None else self._rng.permutation(size)
            self._order = np.concatenate([self._order, epoch])
        batch, self._order = self._order[:n], self._order[n:]
        return self._spec.tensor.stored(self._images.x[batch]), self._images.t[batch]


def train(
    job: TrainingJob,
    site: OpenDevice,
    observe: Callable[[int, float, Callable[[Observe], None]], None] = lambda *_: None,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Train and test. At the steps `observe_at` of the job, `observe` is called with the step, its loss, and a function
    that passes all gradients of the step, still scaled by the loss scale, to an `Observe`. Raises DivergedError if the
    loss or gradients are not finite, and DataError for images that cannot be read."""
    setting = job.setting
    # Overflows are counted and reported as a result.
    with np.errstate(over="ignore", invalid="ignore"), contextlib.closing(_Session(job, site)) as session:
        step = session.step
        begin = time.perf_counter()
        losses = _steps(job, step, observe, progress)
        train_time_s = time.perf_counter() - begin
        peak_bytes, memory_owner = site.peak_memory()
        test_loss, accuracy = _test(session)
        if not np.isfinite(test_loss):
            raise DivergedError(f"the test loss is {test_loss} after {setting.steps} steps", losses)
        state = on_host(step.optimizer.state)
        return Run(
            technique=job.technique.name,
            seed=job.cell.seed,
            status="ok",
            losses=losses,
            test_loss=test_loss,
            accuracy=accuracy,
            train_time_s=train_time_s,
            peak_memory_bytes=peak_bytes,
            peak_memory_of=memory_owner,
            first_scale=job.loss_scale,
            last_scale=float(state[SCALE]) * setting.loss_divisor,
            skipped_steps=int(state[SKIPPED]),
        )


class _Session(ChainerSession):
    """The session of a job: the cell's model and rungs, and the technique's optimizer, batches and steps. `test` opens
    the feed of the `test_batches` test batches, which are in a fixed order."""

    test: Callable[[], Feed]
    test_batches: int

    def __init__(self, job: TrainingJob, site: OpenDevice) -> None:
        self._job = job
        super().__init__(job.cell, site, geometry=SMALL_RESNET if job.cell.model == SMALL_RESNET.name else None)

    def optimizer_spec(self) -> OptimizerSpec:
        """Return the technique's optimizer, with the preconditioner of the rungs. In 16 bits without master weights the
        update is parameter by parameter, since the batched update always has master weights."""
        setting, technique = self._job.setting, self._job.technique
        per_parameter = technique.rung != BASE and not technique.masters
        spec = OptimizerSpec(
            learning_rate=setting.learning_rate_at(0, technique.rate),
            momentum=setting.momentum,
            weight_decay=setting.weight_decay,
            build=PerParameterSGD if per_parameter else BatchedSGD,
            # Gradients are scaled by scale / divisor, as on one of several replicas. The update cancels both, so that
            # it applies the sum over replicas that all see the same batch.
            loss_scale=self._job.loss_scale / setting.loss_divisor,
            master_weights=technique.masters,
            dynamic_scale=technique.scaling == "dynamic",
            growth_interval=setting.growth_interval,
        )
        return dataclasses.replace(spec, precondition=self.fold("optimizer", spec).precondition)

    def images(self) -> None:
        """Return None: `feed` provides the images."""

    def feed(self, tensor: TensorSpec) -> Feed:
        """Open the feed of training batches, and set `test` and `test_batches`."""
        cell, setting = self.cell, self._job.setting
        spec = self.feed_spec(tensor)
        if setting.data is None:
            sizes = setting.train_images, setting.test_images, cell.image_size, cell.n_classes
            train_images, test_images = patterns.make(*sizes, setting.noise)
            train: Feed = PatternFeed(train_images, spec, np.random.default_rng(1000 + cell.seed))
            self.test = lambda: deliver(self.site, PatternFeed(test_images, spec, None))
        else:
            train_files, test_files = split(scan(Path(setting.data), checked=True))
            recipe = FeedRecipe(dataclasses.replace(spec, images=train_files), ChainerFeed)
            train = self.fold("feed", recipe).make()
            test_spec = dataclasses.replace(spec, images=test_files, augment=False)
            self.test = lambda: deliver(self.site, ChainerFeed(test_spec))
        self.test_batches = setting.test_images // cell.batch_size
        return deliver(self.site, train)

    def step_of(self, *built: Any) -> ChainerStep:
        """Return the session's step. It processes its batch in shards if the technique imitates several ranks."""
        kinds = {"ranks": RanksInTurn, "turns": StepsInTurn}
        kind = kinds.get(self._job.technique.batch)
        return kind(*built, shards=self._job.setting.ranks) if kind else ChainerStep(*built)


def _steps(
    job: TrainingJob, step: ChainerStep, observe: Any, progress: Callable[[int], None] | None
) -> tuple[float, ...]:
    """Run the training steps of a job and return their losses."""
    losses: list[float] = []
    waiting: list[Any] = []  # losses that are still on the device
    observed_steps = set(job.observe_at)
    for number in range(job.setting.steps):
        step.optimizer.set_learning_rate(job.setting.learning_rate_at(number, job.technique.rate))
        step.io()
        step.forward()
        flowing: list[tuple[Any, str, Any]] = []
        if number in observed_steps:
            with FlowingGradients(step.model, lambda *gradient: flowing.append(gradient)):  # noqa: B023  (used at once)
                step.backward()
            _pass_gradients(number, step, flowing, observe)
        else:
            step.backward()
        # `divide` runs the preconditioner's phases (K-FAC): factors, inverse, precondition.
        for divide in step.preconditioner.phases if step.preconditioner else ():
            divide()
        step.update()
        waiting.append(step.loss_value)
        if len(waiting) == CHECK_EVERY or number == job.setting.steps - 1:
            _read_losses(job, step, losses, waiting)
            if progress:
                progress(number + 1)
    return tuple(losses)


def _pass_gradients(number: int, step: ChainerStep, flowing: list[tuple[Any, str, Any]], observe: Any) -> None:
    """Call `observe` for a step (see `train`), unless its loss is not finite.
    `flowing` has the arguments of an `Observe` for the gradients of activations; those of weights are added here."""
    loss = float(on_host(step.loss_value))
    if not np.isfinite(loss):  # the run will end as diverged, so its gradients are of no interest
        return

    def hand_over(receive: Observe) -> None:
        """Pass every gradient of the step to `receive`: those of activations first, then those of weights."""
        for gradient in flowing:
            receive(*gradient)
        for layer, parameter in layer_parameters(step.model):
            receive("weights", layer, on_host(parameter.grad))

    observe(number, loss, hand_over)


def _read_losses(job: TrainingJob, step: ChainerStep, losses: list[float], waiting: list[Any]) -> None:
    """Move the losses in `waiting`, which are on the device, to `losses`. Raises DivergedError if a loss or gradients
    are not finite."""
    for loss in waiting:
        value = float(on_host(loss))
        if not np.isfinite(value):
            raise DivergedError(f"diverged at step {len(losses)}: the loss is {value}", tuple(losses))
        losses.append(value)
    waiting.clear()
    try:
        step.optimizer.check()
    except TrainingError:
        reason = "gradients are not finite; lower the learning rate"
        if job.technique.scaling == "static":
            scale = f"a static loss scale of 2^{np.log2(job.loss_scale):g}"
            reason = f"gradients overflowed float16 at {scale}; lower --scale, or use a dynamic one"
        raise DivergedError(f"diverged by step {len(losses) - 1}: {reason}", tuple(losses)) from None


def _test(session: _Session) -> tuple[float, float]:
    """Return the mean loss and the accuracy on the test images, with the running statistics of batch normalisation."""
    feed, model = session.test(), session.step.model
    losses, right = [], []
    try:
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            for _ in range(session.test_batches):
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
