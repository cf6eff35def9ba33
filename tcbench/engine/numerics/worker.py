"""The training process: it reads a job in JSON from standard input and sends messages and one result to a pipe.

Usage: `python -m tcbench.engine.numerics.worker FD`. A loss or gradients that are not finite, too little memory and
exceptions become results of the run. Libraries may print to standard output and error."""

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
    total_magnitudes,
)
from tcbench.engine.measure.pipe import serve
from tcbench.engine.measure.worker import describe, failure


def main() -> None:
    """Run the job on standard input."""
    decoder: msgspec.json.Decoder[AnyJob] = msgspec.json.Decoder(AnyJob)
    serve(decoder.decode, lambda job, send: run(job, send) if isinstance(job, TrainingJob) else parity(job, send))


class GradientCounter:
    """Histograms of gradients by kind, layer and step."""

    def __init__(self) -> None:
        self._layers: dict[tuple[GradientKind, str], list[Magnitudes]] = {}
        self._steps: list[StepGradients] = []

    def step(self, number: int, loss: float, hand_over: Callable[[Any], None]) -> None:
        """Count the gradients of a step. `hand_over` passes each of them to the function that it gets."""
        from tcbench.engine.numerics.gradients import count

        step_counts: dict[GradientKind, list[Magnitudes]] = {kind: [] for kind in KINDS}

        def observe(kind: GradientKind, layer: str, values: Any) -> None:
            histogram = count(values)
            step_counts[kind].append(histogram)
            self._layers.setdefault((kind, layer), []).append(histogram)

        hand_over(observe)
        self._steps += [
            StepGradients(kind=k, step=number, loss=loss, magnitudes=total_magnitudes(step_counts[k])) for k in KINDS
        ]

    def histograms(self, seed: int) -> Gradients:
        """Return the histograms that were counted so far, with the seed of the run."""
        layers = [
            LayerGradients(kind=kind, layer=layer, magnitudes=total_magnitudes(histograms))
            for (kind, layer), histograms in self._layers.items()
        ]
        return Gradients(seed=seed, layers=tuple(layers), steps=tuple(self._steps))


def run(job: TrainingJob, send: Callable[[NumericsMessage], None]) -> TrainingFinished:
    """Train as the job says. Errors become part of the result."""
    counter = GradientCounter()
    environment = None

    def failed(status: Any, reason: str | None, **facts: Any) -> TrainingFinished:
        facts |= {"first_scale": job.loss_scale, "last_scale": job.loss_scale}
        return finished(Run(technique=job.technique.name, seed=job.cell.seed, status=status, reason=reason, **facts))

    def finished(run: Run) -> TrainingFinished:
        return TrainingFinished(run, counter.histograms(job.cell.seed) if job.observe_at else None, environment)

    try:
        environment = describe(job.cell)
        from tcbench.engine.backends.chainer.sites import open_site
        from tcbench.engine.numerics.training import DivergedError, train

        try:
            trained = train(job, open_site(job.cell), counter.step, lambda steps: send(StepsDone(steps)))
        except DivergedError as error:
            return failed("diverged", str(error), losses=_rounded(error.losses))
    except Exception as error:
        return failed(*failure(job.cell, error))
    return finished(msgspec.structs.replace(trained, losses=_rounded(trained.losses)))


def parity(job: ParityJob, send: Callable[[NumericsMessage], None]) -> ParityFinished:
    """Compare every config with the one without its last rung. Errors become part of the result."""
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
    """Round losses to six digits, the precision of float32. The first that is not finite ends them, since JSON cannot
    store it."""
    return tuple(float(f"{loss:.6g}") for loss in itertools.takewhile(math.isfinite, losses))


if __name__ == "__main__":
    main()
