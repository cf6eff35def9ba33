"""Whether configs are within what their rungs declare: distances become answers. Pure.

A rung's tolerance is against the same config without it (`tcbench.engine.rung.Parity`), and what it shows is all that
may be observed to differ. What no rung declares stands here: how well an optimizer must fit its update.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tcbench.core.numerics import BASE, Distance, ParityRun
from tcbench.engine.api import Rung, Tolerance

EXACT_TOLERANCE = Tolerance(0.0, 0.0, 0.0, 0.0)


def optimizer_at_most(storage: str) -> float:
    """Relative distance of what updates do from float64's. A float16 gradient is unscaled in float16, whose rounding
    alone is 2^-11; bfloat16's need no scale."""
    return 1e-3 if storage == "float16" else 1e-5


@dataclass(frozen=True)
class JudgedRun:
    """A run and its tolerance, and why it is off, or None. `same_batches`: its last rung is of the input, and is fed
    the same batches here as any other, so that nothing may change."""

    run: ParityRun
    tolerance: Tolerance
    off: str | None
    same_batches: bool


def judge(runs: Sequence[ParityRun], rung_of: Callable[[str], Rung]) -> tuple[JudgedRun, ...]:
    """Each run against what its last rung declares; fp32 against float64, within what rounding may do."""
    return tuple(_judged(run, rung_of(run.rung)) for run in runs)


def _judged(run: ParityRun, rung: Rung) -> JudgedRun:
    parity = rung.rounding if run.config == BASE else rung.parity
    tolerance, same_batches = parity.of(run.storage) or EXACT_TOLERANCE, parity.kind == "input"
    if run.reason is not None:
        return JudgedRun(run, tolerance, run.reason, same_batches)
    assert run.to_without is not None
    if not run.to_without.finite:
        return JudgedRun(run, tolerance, "its loss or its parameters are not finite", same_batches)
    off = [*_far(run.to_without, tolerance), *_unlike_update(run), *_unseen(run, rung)]
    if off and parity.kind in ("tolerance", "other") and parity.of(run.storage) is None:
        off.append(f"{run.rung} declares no tolerance for {run.storage}")
    return JudgedRun(run, tolerance, ", ".join(off) or None, same_batches)


def _far(distance: Distance, tolerance: Tolerance) -> list[str]:
    return [
        f"{name} {value:.2g} above {most:.2g}"
        for name, value, most in (
            ("loss", distance.loss, tolerance.loss),
            (f"gradient ({distance.gradient_of})", distance.gradient, tolerance.gradient),
            (f"gradient's length ({distance.length_of})", distance.length, tolerance.length),
            ("update", distance.update, tolerance.update),
        )
        if value is not None and most is not None and value > most
    ]


def _unlike_update(run: ParityRun) -> list[str]:
    most = optimizer_at_most(run.storage)
    if run.optimizer is None or run.optimizer <= most:
        return []
    return [f"optimizer ({run.optimizer_of}) {run.optimizer:.2g} from what its rungs declare, above {most:.2g}"]


def _unseen(run: ParityRun, rung: Rung) -> list[str]:
    """Observed properties that are neither what the rung shows nor what they were without the rung."""
    expected = {what: how for what, how in run.seen_without.items() if what in run.seen} | dict(rung.shows)
    return [
        f"{what}: {run.seen.get(what, 'not seen')}, expected {how}"
        for what, how in expected.items()
        if run.seen.get(what) != how
    ]
