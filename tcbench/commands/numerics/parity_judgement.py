"""Judgement of configs: whether their distances are within what their rungs declare. Pure functions.

A rung's tolerance compares a config with the same config without the rung (`tcbench.engine.rung.Parity`). A property
may differ only if the rung declares that it shows. The tolerance of an optimizer's update, which no rung declares, is
set here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tcbench.core.numerics import BASE, Distance, ParityRun
from tcbench.engine.api import Rung, Tolerance

EXACT_TOLERANCE = Tolerance(0.0, 0.0, 0.0, 0.0)
"""Tolerance of a rung that must change nothing."""


def optimizer_at_most(storage: str) -> float:
    """Return the largest relative distance of updates from those in float64.

    float16 gradients are unscaled in float16, whose rounding alone is 2^-11; bfloat16 gradients need no loss scale."""
    return 1e-3 if storage == "float16" else 1e-5


@dataclass(frozen=True)
class JudgedRun:
    """A run with its tolerance, and the reason why it is off, or None.

    `same_batches`: its last rung changes the input, but is fed the same batches here as other rungs, so nothing may
    change."""

    run: ParityRun
    tolerance: Tolerance
    off: str | None
    same_batches: bool


def judge(runs: Sequence[ParityRun], rung_of: Callable[[str], Rung]) -> tuple[JudgedRun, ...]:
    """Judge each run by what its last rung declares, and fp32 by its distance to float64."""
    return tuple(_judged(run, rung_of(run.rung)) for run in runs)


def _judged(run: ParityRun, rung: Rung) -> JudgedRun:
    """Judge a run by the tolerance and effects that its last rung, `rung`, declares; fp32 by the rung's `rounding`."""
    parity = rung.rounding if run.config == BASE else rung.parity
    tolerance, same_batches = parity.tolerance(run.storage) or EXACT_TOLERANCE, parity.kind == "input"
    if run.reason is not None:
        return JudgedRun(run, tolerance, run.reason, same_batches)
    assert run.to_without is not None
    if not run.to_without.finite:
        return JudgedRun(run, tolerance, "its loss or its parameters are not finite", same_batches)
    off = [*_too_far(run.to_without, tolerance), *_wrong_update(run), *_wrong_properties(run, rung)]
    if off and parity.kind in ("tolerance", "other") and parity.tolerance(run.storage) is None:
        off.append(f"{run.rung} declares no tolerance for {run.storage}")
    return JudgedRun(run, tolerance, ", ".join(off) or None, same_batches)


def _too_far(distance: Distance, tolerance: Tolerance) -> list[str]:
    """Return the distances that exceed the tolerance, in words."""
    return [
        f"{name} {measured:.2g} above {most:.2g}"
        for name, measured, most in (
            ("loss", distance.loss, tolerance.loss),
            (f"gradient ({distance.gradient_of})", distance.gradient, tolerance.gradient),
            (f"gradient's length ({distance.length_of})", distance.length, tolerance.length),
            ("update", distance.update, tolerance.update),
        )
        if measured is not None and most is not None and measured > most
    ]


def _wrong_update(run: ParityRun) -> list[str]:
    """Return a list with the distance of the optimizer's update in words if it is too large; else an empty list."""
    most = optimizer_at_most(run.storage)
    if run.optimizer_distance is None or run.optimizer_distance <= most:
        return []
    return [
        f"optimizer ({run.optimizer_parameter}) {run.optimizer_distance:.2g} from the update of its rungs in float64, "
        f"above {most:.2g}"
    ]


def _wrong_properties(run: ParityRun, rung: Rung) -> list[str]:
    """Return observed properties that are neither declared by the rung nor the same as without it."""
    expected = {name: state for name, state in run.seen_without.items() if name in run.seen} | dict(rung.effects)
    return [
        f"{name}: {run.seen.get(name, 'not seen')}, expected {state}"
        for name, state in expected.items()
        if run.seen.get(name) != state
    ]
