"""Whether configs are within what their rungs declare: distances become answers. Pure.

A rung's tolerance is against the same config without it (`tcbench.rung.Parity`). The gradient of the first step is held
to the tolerance of the update, which is made of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tcbench.numerics.form import BASE, ParityRun
from tcbench.rung import ROUNDING, Parity, Tolerance

EXACT_TOLERANCE = Tolerance(0.0, 0.0)

SLOPE_AT_MOST = 1e-3
"""Relative error of float64's gradient against the slope of the loss."""


@dataclass(frozen=True)
class Judged:
    """A run and its tolerance (None where there is none to hold it to), and why it is off, or None."""

    run: ParityRun
    tolerance: Tolerance | None
    off: str | None
    says: str


def judge(runs: Sequence[ParityRun], parity_of: Callable[[str], Parity]) -> tuple[Judged, ...]:
    """Each run against what its last rung declares; fp32 against float64, within what rounding may do."""
    return tuple(_judged(run, parity_of) for run in runs)


def _judged(run: ParityRun, parity_of: Callable[[str], Parity]) -> Judged:
    parity = ROUNDING if run.config == BASE else parity_of(run.rung)
    # An input rung is fed the same batches here as any other, so that nothing may change.
    tolerance = (run_tolerance(parity, run.half) or EXACT_TOLERANCE) if parity.kind == "tolerance" else EXACT_TOLERANCE
    says = {"exact": "bit-identical", "input": "same batches: bit-identical"}.get(parity.kind, "")
    if run.reason is not None:
        return Judged(run, tolerance, run.reason, says)
    found = run.to_without
    assert found is not None
    if not found.finite:
        return Judged(run, tolerance, "its loss or its parameters are not finite", says)
    off = [
        f"{name} {value:.2g} above {most:.2g}"
        for name, value, most in (
            ("loss", found.loss, tolerance.loss),
            ("gradient", found.gradient, tolerance.update),
            ("update", found.update, tolerance.update),
        )
        if value is not None and value > most
    ]
    return Judged(run, tolerance, ", ".join(off) or None, says)


def run_tolerance(parity: Parity, half: bool) -> Tolerance | None:
    """The tolerance for a config that stores float16, or float32."""
    return parity.half if half else parity.single
