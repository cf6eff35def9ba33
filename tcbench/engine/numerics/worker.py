"""The process that trains: one Job (JSON) in on standard input, messages and one result out on a pipe.

Run as `python -m tcbench.engine.numerics.worker FD`. What goes wrong in a run is that run's result: a loss or gradients
that are not finite, too little memory, an exception. Standard output and error are free for libraries to write to."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import msgspec

from tcbench.core.numerics import (
    KINDS,
    AnyJob,
    GradientKind,
    Gradients,
    LayerGradients,
    Magnitudes,
    NumericsMessage,
    ParityFinished,
    ParityJob,
    Run,
    StepGradients,
    StepsDone,
    TrainingFinished,
    TrainingJob,
)
from tcbench.engine.measure.pipe import serve
from tcbench.engine.measure.worker import describe, failure


def main() -> None:
    """Train the job that stands on standard input."""
    decoder: msgspec.json.Decoder[AnyJob] = msgspec.json.Decoder(AnyJob)
    serve(decoder.decode, lambda job, send: run(job, send) if isinstance(job, TrainingJob) else parity(job, send))


class Counting:
    """Counts what it is handed, by kind, layer and step."""

    def __init__(self) -> None:
        self._layers: dict[tuple[GradientKind, str], list[Magnitudes]] = {}
        self._steps: list[StepGradients] = []

    def step(self, number: int, loss: float, hand_over: Callable[[Any], None]) -> None:
        from tcbench.core.numerics import total_magnitudes
        from tcbench.engine.numerics.gradients import count

        here: dict[GradientKind, list[Magnitudes]] = {kind: [] for kind in KINDS}

        def observe(kind: GradientKind, layer: str, values: Any) -> None:
            counted = count(values)
            here[kind].append(counted)
            self._layers.setdefault((kind, layer), []).append(counted)

        hand_over(observe)
        self._steps += [
            StepGradients(kind=k, step=number, loss=loss, magnitudes=total_magnitudes(here[k])) for k in KINDS
        ]

    def gradients(self, seed: int) -> Gradients:
        from tcbench.core.numerics import total_magnitudes

        layers = [
            LayerGradients(kind=kind, layer=layer, magnitudes=total_magnitudes(counted))
            for (kind, layer), counted in self._layers.items()
        ]
        return Gradients(seed=seed, layers=tuple(layers), steps=tuple(self._steps))


def run(job: TrainingJob, send: Callable[[NumericsMessage], None]) -> TrainingFinished:
    """Train; never raises but on a signal."""
    counting = Counting()
    environment = None

    def ended(status: Any, reason: str | None, **facts: Any) -> TrainingFinished:
        facts |= {"first_scale": job.loss_scale, "last_scale": job.loss_scale}
        return finished(Run(technique=job.technique.name, seed=job.cell.seed, status=status, reason=reason, **facts))

    def finished(of: Run) -> TrainingFinished:
        return TrainingFinished(of, counting.gradients(job.cell.seed) if job.observe_at else None, environment)

    try:
        environment = describe(job.cell)
        from tcbench.engine.backends.chainer.sites import open_site
        from tcbench.engine.numerics.training import DivergedError, train

        try:
            trained = train(
                job,
                open_site(job.cell),
                counting.step if job.observe_at else None,
                lambda steps: send(StepsDone(steps)),
            )
        except DivergedError as error:
            return ended("diverged", str(error), losses=_rounded(error.losses))
    except Exception as error:
        return ended(*failure(job.cell, error))
    return finished(msgspec.structs.replace(trained, losses=_rounded(trained.losses)))


def parity(job: ParityJob, send: Callable[[NumericsMessage], None]) -> ParityFinished:
    """Hold every config against the one without its last rung; never raises but on a signal."""
    environment = None
    try:
        environment = describe(job.cell)
        from tcbench.engine.backends.chainer.sites import open_site
        from tcbench.engine.numerics.distances import compare

        runs = compare(job, open_site, lambda done: send(StepsDone(done)))
        return ParityFinished(runs, environment=environment)
    except Exception as error:
        _, reason = failure(job.cell, error)
        return ParityFinished((), reason, environment)


def _rounded(losses: tuple[float, ...]) -> tuple[float, ...]:
    """Six digits: as many as a float32 loss has to tell; up to the first that is not finite, which JSON cannot say."""
    return tuple(float(f"{loss:.6g}") for loss in itertools.takewhile(math.isfinite, losses))


if __name__ == "__main__":
    main()
