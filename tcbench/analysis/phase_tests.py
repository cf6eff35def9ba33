"""Tests whether a phase of the step became slower, next to the test of the whole step, which varies more than one
phase.

A phase is judged by the throughput of a step in which nothing else changed: base step time / (base step time + the
change of the phase). So a loss in a phase has the unit, the threshold, the rules and the pooled noise of the whole
step.

Whatever slows a trial slows all its phases. The part of the other phases' relative change that a phase shares is
therefore subtracted from it (analysis of covariance; R. Fisher, "Statistical Methods for Research Workers", 4th edition
1932). The other phases are weighted by their seconds, but a phase that varies more than the whole step is also weighted
by the inverse of its variance (W. Cochran, "Problems arising in the analysis of a series of similar experiments",
Supplement to the Journal of the Royal Statistical Society 4, 1937), so that it does not hide what all have in common.
Steady phases get no extra weight, so that a small phase that changed by itself says little about the others.

A cell regresses because of a phase if all of these hold:

- The loss is significantly above the threshold, and significantly above zero: the union of all phases' tests
  (union-intersection: S. Roy, "On a heuristic method of test construction and its use in multivariate analysis", Annals
  of Mathematical Statistics 24, 1953). Each test gets the fraction of the level that the phase has of the step, since
  long phases vary most (weighted Bonferroni: E. Spjotvoll, "On the optimality of some multiple comparison procedures",
  Annals of Mathematical Statistics 43, 1972).
- The phase also seems slower without the adjustment. Otherwise a phase that did not change would seem slower only
  because the others became faster.
- No other phase makes up for the loss. The sum of the phase and each other phase must be significantly slower
  (intersection-union: R. Berger, Technometrics 24, 1982), at a level for all cells together; cells that pass leave
  their share to the rest (S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
  Statistics 6, 1979). If one of these sums is not, the loss is unsettled. Work moved only if another phase became
  significantly faster by its own times, at the same levels.
- The whole step is undecided. A step that lost significantly less than the threshold is no regression."""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from tcbench.analysis import noise
from tcbench.analysis.stats import Interval
from tcbench.analysis.verdict import Rule
from tcbench.analysis.welch import LEAST_TRIALS, Estimate, SampleStats
from tcbench.core.groups import grouped

SHARE = 0.1
"""Level of the test that anything changed, for the phases of all cells together, relative to the level of the whole
steps, which is kept. Phases vary by less than the threshold, so this is enough."""

_MOVED = 0.25
"""Level of the test that no other phase makes up for a loss, for all cells together, relative to the level of the test
that anything changed. It can be wrong only where work moved and all other tests reject rightly."""

_LEAST_DEGREES = 16
"""Degrees of freedom over all cells that are needed to estimate the change that phases share. The estimate uses one."""

NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""An empty mapping."""
PhaseDecision = Literal["slower", "unsettled", "moved", "faster"]
"""`slower`: significantly slower by more than the threshold, and the step too. `unsettled`: significantly slower, but
another phase may have gained as much. `moved`: significantly slower, and another phase became significantly `faster` by
more than the threshold."""


@dataclass(frozen=True)
class PhaseTrials:
    """The times by which the phases of one cell are judged.

    - `step_s`: the base's time per step in seconds.
    - `base`, `current`: for each phase, its seconds per step in each trial of that side.
    - `by_round`: the whole step is compared by pairs of trials of the same round."""

    step_s: float
    base: Mapping[str, Sequence[float]]
    current: Mapping[str, Sequence[float]]
    by_round: bool = False

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the phases that can be judged: those with two trials on each side."""
        return tuple(
            name for name in self.base if min(len(self.base[name]), len(self.current.get(name, ()))) >= LEAST_TRIALS
        )

    def other_names(self, *names: str) -> tuple[str, ...]:
        """Return the names of the phases that can be judged, except `names`."""
        return tuple(name for name in self.names if name not in names)

    def share(self, name: str) -> float:
        """Return a phase's share of the total time in the phases that can be judged, averaged over base and current."""
        sides = zip(self._sides_s(name), self._sides_s(*self.names), strict=True)
        return statistics.fmean(math.fsum(phase_s) / (math.fsum(total_s) or math.inf) for phase_s, total_s in sides)

    @functools.cached_property
    def _sides_s(self) -> Callable[..., list[list[float]]]:
        """A cached function of phase names that returns two lists, for base and for current: the phases' total seconds
        in each trial."""

        def sums(*names: str) -> list[list[float]]:
            """Return, for base and for current, the total seconds of the phases `names` in each trial."""
            side_sums = []
            for side in (self.base, self.current):
                trials = min(len(side[name]) for name in self.names)
                side_sums.append([*map(math.fsum, zip(*(side[name][:trials] for name in names), strict=True))])
            return side_sums

        return functools.cache(sums)

    def mean_s(self, *names: str) -> float:
        """Return the total seconds of the phases `names`, averaged over the base's trials."""
        return statistics.fmean(self._sides_s(*names)[0])

    @functools.cached_property
    def _paired(self) -> bool:
        """Whether the trials of both sides are paired by round."""
        base_s, current_s = self._sides_s(*self.names)
        return self.by_round and len(base_s) == len(current_s)

    @functools.cached_property
    def deviations(self) -> Callable[..., list[float]]:
        """A cached function of phase names that returns how far the phases' total time is from its mean over trials, as
        a fraction of the mean. If trials are paired by round, it returns the deviation of current minus that of base
        for each round, else the deviations of the base's trials and then those of the current ones."""

        def total_deviations(*names: str) -> list[float]:
            """Return the relative deviations of the total time of the phases `names`."""
            base, current = (_relative_deviations(seconds) for seconds in self._sides_s(*names))
            return [y - x for x, y in zip(base, current, strict=True)] if self._paired else base + current

        return functools.cache(total_deviations)

    @functools.cached_property
    def degrees(self) -> int:
        """Degrees of freedom of `deviations`."""
        return len(self.deviations(*self.names)) - (1 if self._paired else 2)

    @functools.cached_property
    def variance(self) -> Callable[..., float]:
        """A cached function of phase names that returns the variance of the phases' `deviations`."""
        return functools.cache(
            lambda *names: _dot_product(self.deviations(*names), self.deviations(*names)) / self.degrees
        )

    def estimate(self, *names: str, common: Mapping[str, float] = NOTHING) -> Estimate | None:
        """Return the ratio of step throughputs, current / base, if only the phases `names` had changed. `common` holds,
        by other phase, the fraction of its relative change that is subtracted.

        None without names, if one of them cannot be judged, or if a changed step would take no time."""
        if not names or not set(names) <= set(self.names):
            return None
        base_s, current_s = self._sides_s(*names)
        for other, part in common.items():
            factor = part * self.mean_s(*names) / self.mean_s(other)
            base_s, current_s = (
                [phase_s - factor * other_s for phase_s, other_s in zip(*sides, strict=True)]
                for sides in zip((base_s, current_s), self._sides_s(other), strict=True)
            )
        rest_s = self.step_s - statistics.fmean(base_s)
        if min(*base_s, *current_s) + rest_s <= 0:
            return None
        base, current = ([-math.log((rest_s + s) / self.step_s) for s in side] for side in (base_s, current_s))
        if self._paired:
            return Estimate(SampleStats.from_values([x - y for x, y in zip(current, base, strict=True)]))
        return Estimate(SampleStats.from_values(current), SampleStats.from_values(base))


def _relative_deviations(values: Sequence[float]) -> list[float]:
    """Return each value's relative deviation from the mean, x / mean - 1."""
    mean = statistics.fmean(values)
    return [value / mean - 1 if mean else 0.0 for value in values]


def _dot_product(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the dot product."""
    return math.fsum(x * y for x, y in zip(first, second, strict=True))


@dataclass(frozen=True)
class PhaseVerdict:
    """The verdict on one phase. `unadjusted`: the ratio of step throughputs, current / base, if only this phase had
    changed; noise is pooled over cells. `adjusted`: the same ratio after subtracting the change that is common to all
    phases. `decision`: None if nothing significant was found."""

    unadjusted: Estimate
    adjusted: Estimate
    decision: PhaseDecision | None = None

    @property
    def slower_by(self) -> Interval:
        """How much longer the phase takes, as a fraction of the base's step. `slower` and `unsettled` rest on the
        `adjusted` ratio. Other phases, such as those between which work moved, are judged by their own times."""
        estimate = self.adjusted if self.decision in ("slower", "unsettled") else self.unadjusted
        ratio = estimate.inverse.ratio.interval()
        return Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1)


NONE = PhaseTrials(1.0, {}, {})
"""The times of a cell whose phases are not judged."""


def judge(cells: Sequence[PhaseTrials], rule: Rule) -> list[dict[str, PhaseVerdict]]:
    """Return, for each cell, the verdicts on its phases by phase name. `rule` is the rule for a whole step, after
    division among the cells. A phase that is slower by itself stays `slower` only if no other phase of its cell makes
    up for it."""
    judged: list[dict[str, PhaseVerdict]] = [{} for _ in cells]
    for name in dict.fromkeys(name for cell in cells for name in cell.names):
        unadjusted, adjusted = _pooled_estimates(cells, name), _adjusted_estimates(cells, name)
        for number in unadjusted.keys() & adjusted.keys():
            is_slower = (
                unadjusted[number].ratio.value < 1 - rule.threshold
                and _phase_rule(rule, cells[number].share(name)).judge(adjusted[number].ratio) == "regression"
            )
            judged[number][name] = PhaseVerdict(unadjusted[number], adjusted[number], "slower" if is_slower else None)
    sums = functools.cache(functools.partial(_adjusted_estimates, cells))

    def may_be_undone(number: int, name: str, level: float) -> bool:
        """Return whether another phase of the cell may have gained as much as the phase `name` lost. `number` is the
        index of the cell, and `level` is the level of the test on each pair of phases."""
        pairs = (sums(*sorted((name, other))).get(number) for other in cells[number].other_names(name))
        return any(estimate is None or estimate.ratio.limit(1 - level) >= 1 for estimate in pairs)

    slower = [(n, name) for n, phases in enumerate(judged) for name, phase in phases.items() if phase.decision]
    # Holm's procedure: cells that pass this test leave their share of the level to the rest.
    cell_count, unsure = sum(bool(cell.names) for cell in cells), slower
    family_level = _MOVED * rule.change_level * cell_count
    level = family_level / max(1, cell_count)
    while len(unsure) > len(remaining := [place for place in unsure if may_be_undone(*place, level)]):
        unsure = remaining
        level = family_level / max(1, cell_count - len({number for number, _ in set(slower) - set(unsure)}))
    for number, name in unsure:
        phases = judged[number]
        faster = {
            other: replace(phase, decision="faster")
            for other, phase in phases.items()
            if _phase_rule(rule, cells[number].share(other)).judge(phase.unadjusted.ratio) == "improved"
        }
        phases |= faster | {name: replace(phases[name], decision="moved" if faster else "unsettled")}
    return judged


def lost(phases: Mapping[str, PhaseVerdict]) -> str | None:
    """Return the name of the phase judged slower that has the largest loss, or None if no phase is judged slower."""
    slower = [name for name, phase in phases.items() if phase.decision == "slower"]
    return min(slower, key=lambda name: phases[name].adjusted.ratio.log, default=None)


def power(cells: Sequence[PhaseTrials], judged: Sequence[Mapping[str, PhaseVerdict]], rule: Rule) -> float | None:
    """Return the statistical power: the share of phases in which a loss of `rule.slowdown` of the step would be
    detected. `judged` holds the verdicts of `judge` on the same cells. None if no phase is judged."""
    sums = functools.cache(functools.partial(_adjusted_estimates, cells))
    # Pairs of phases are only tested against 1: at level 0.5 the test against the threshold just compares the value.
    pair_rule = replace(rule, level=0.5, change_level=_MOVED * rule.change_level)
    powers = []
    for number, (cell, phases) in enumerate(zip(cells, judged, strict=True)):
        for name, phase in phases.items():
            pairs = (sums(*sorted((name, other))).get(number) for other in cell.other_names(name))
            pair_powers = [pair_rule.power(estimate.ratio) for estimate in pairs if estimate is not None]
            powers.append(min(_phase_rule(rule, cell.share(name)).power(phase.adjusted.ratio), *pair_powers, 1.0))
    return statistics.fmean(powers) if powers else None


def _phase_rule(rule: Rule, share: float) -> Rule:
    """Return the rule for a phase that takes `share` of the step, from the rule for the whole step."""
    return replace(rule, level=rule.level * share, change_level=rule.change_level * SHARE * share)


def _adjusted_estimates(cells: Sequence[PhaseTrials], *names: str) -> dict[int, Estimate]:
    """Return the pooled estimates of the total time of the phases `names`, by cell index, adjusted for changes that
    they share with the other phases. Cells that lack one of the phases are left out.

    The relative deviations of `names` are regressed on those of the other phases, by least squares over all cells,
    each cell weighted by the inverse variance of its whole step. With fewer than `_LEAST_DEGREES` degrees of freedom,
    nothing is subtracted."""
    varying = {n: cell for n, cell in enumerate(cells) if {*names} < {*cell.names} and cell.variance(*cell.names)}
    variances: dict[str, list[float]] = grouped(
        (other, cell.variance(other) / cell.variance(*cell.names))
        for cell in varying.values()
        for other in cell.other_names(*names)
    )
    precision = {name: 1 / max(1.0, statistics.fmean(ratios)) for name, ratios in variances.items()}
    weights = {
        n: _normalised({other: precision[other] * cell.mean_s(other) for other in cell.other_names(*names)})
        for n, cell in varying.items()
    }
    product = square = 0.0
    for n, cell in varying.items():
        deviations = cell.deviations(*names)
        change = [0.0] * len(deviations)
        for other, weight in weights[n].items():
            change = [x + weight * y for x, y in zip(change, cell.deviations(other), strict=True)]
        product += _dot_product(deviations, change) / cell.variance(*cell.names)
        square += _dot_product(change, change) / cell.variance(*cell.names)
    enough = square and sum(cell.degrees for cell in varying.values()) >= _LEAST_DEGREES
    slope = min(1.0, max(0.0, product / square)) if enough else 0.0
    common = {n: {other: slope * weight for other, weight in cell.items()} for n, cell in weights.items()}
    return _pooled_estimates(cells, *names, common=common)


def _normalised(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return each positive amount divided by the total of all amounts. Other amounts are left out."""
    return {name: amount / math.fsum(amounts.values()) for name, amount in amounts.items() if amount > 0}


def _pooled_estimates(
    cells: Sequence[PhaseTrials], *names: str, common: Mapping[int, Mapping[str, float]] = NOTHING
) -> dict[int, Estimate]:
    """Return the pooled estimates of the total time of the phases `names`, by cell index. `common` holds, by cell index
    and other phase, the fraction of that phase's relative change to subtract."""
    unpooled = (cell.estimate(*names, common=common.get(n, {})) for n, cell in enumerate(cells))
    estimates = {n: estimate for n, estimate in enumerate(unpooled) if estimate is not None}
    return dict(zip(estimates, noise.pooled(list(estimates.values())), strict=True))
