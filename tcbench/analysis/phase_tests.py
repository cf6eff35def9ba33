"""Whether a phase of the step got slower: judged beside the whole, which varies more than one phase does.

A phase counts as the throughput of a step in which nothing else changed, base's step over base's step and the seconds
that the phase gained: so a loss in it has the unit, the threshold, the rules and the moderated noise of the whole. What
slows a trial slows all its phases: the part of the others' relative change that a phase shares is taken out of its own
(analysis of covariance; R. Fisher, "Statistical Methods for Research Workers", 4th edition 1932). The others' change is
that of their seconds, but of a phase that varies more than the whole does only as much of them as one over its variance
says (W. Cochran, "Problems arising in the analysis of a series of similar experiments", Supplement to the Journal of
the Royal Statistical Society 4, 1937): it does not hide what all have in common. Steady phases have no more than their
seconds, so that a small one that changed by itself says little of the others. A cell regresses by a phase where

- the loss is surely above the threshold, and surely there: the union of all phases' tests (union-intersection: S. Roy,
  "On a heuristic method of test construction and its use in multivariate analysis", Annals of Mathematical Statistics
  24, 1953), each at the share of the level that it has of the step, since long phases vary most (Bonferroni's
  inequality with weights: E. Spjotvoll, "On the optimality of some multiple comparison procedures", Annals of
  Mathematical Statistics 43, 1972);
- its own times seem to have lost as much: beside phases that got faster one that did not change seems slower;
- no other phase surely undoes it: with each of the others the sum of both must surely be slower (intersection-union: R.
  Berger, Technometrics 24, 1982), at a level for all cells, which those that pass leave to the rest (S. Holm, "A simple
  sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979). Where that is not sure
  the loss is unsettled; work moved only where another phase surely became faster, by its own times, at the same levels;
- the whole is not settled: what surely lost less than the threshold is no regression.
"""

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
from tcbench.analysis.welch import LEAST_TRIALS, Estimate, Group
from tcbench.core.groups import grouped

SHARE = 0.1
"""The level of "anything changed" that the phases of all cells have together, over that of the wholes, which keep
theirs: no verdict of a whole is another for its phases. A phase scatters by less than the threshold: that is enough."""

_MOVED = 0.25
"""The level of "no other phase undoes it" over that of "anything changed", for all cells together: it is met wherever
work moved, when all the other tests reject by right."""

_TELLING = 16
"""Degrees of freedom, of all cells together, that tell what phases have in common; to tell it takes one."""

NOTHING: Mapping[Any, Any] = MappingProxyType({})
PhaseDecision = Literal["slower", "unsettled", "moved", "faster"]
"""Slower: surely, by more than the threshold, and the step with it. Unsettled: surely slower, but another phase may
have won as much. Moved: surely slower, and another phase surely became `faster` by more than the threshold."""


@dataclass(frozen=True)
class PhaseTrials:
    """Seconds of each phase, by trial, beside the base's step. `by_round`: as the whole is compared."""

    step_s: float
    base: Mapping[str, Sequence[float]]
    current: Mapping[str, Sequence[float]]
    by_round: bool = False

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Of the phases that can be judged: each side has two trials of them."""
        return tuple(
            name for name in self.base if min(len(self.base[name]), len(self.current.get(name, ()))) >= LEAST_TRIALS
        )

    def others(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in names)

    def share(self, name: str) -> float:
        """Of the seconds of all phases, those of one; the mean of both sides."""
        own, every = self._sides_s(name), self._sides_s(*self.names)
        return statistics.fmean(math.fsum(x) / (math.fsum(y) or math.inf) for x, y in zip(own, every, strict=True))

    @functools.cached_property
    def _sides_s(self) -> Callable[..., list[list[float]]]:
        """Of base and current, by trial: the seconds of some phases together."""

        def sums(*names: str) -> list[list[float]]:
            of_sides = []
            for side in (self.base, self.current):
                trials = min(len(side[name]) for name in self.names)
                of_sides.append([*map(math.fsum, zip(*(side[name][:trials] for name in names), strict=True))])
            return of_sides

        return functools.cache(sums)

    def mean_s(self, *names: str) -> float:
        """Of base's trials."""
        return statistics.fmean(self._sides_s(*names)[0])

    @functools.cached_property
    def _paired(self) -> bool:
        base_s, current_s = self._sides_s(*self.names)
        return self.by_round and len(base_s) == len(current_s)

    @functools.cached_property
    def deviations(self) -> Callable[..., list[float]]:
        """How trials differ in the seconds of some phases together, over their mean: from it on each side, or, as the
        whole is compared by round, from base to current."""

        def differ(*names: str) -> list[float]:
            base, current = (_from_mean(seconds) for seconds in self._sides_s(*names))
            return [y - x for x, y in zip(base, current, strict=True)] if self._paired else base + current

        return functools.cache(differ)

    @functools.cached_property
    def degrees(self) -> int:
        """Of freedom of the deviations."""
        return len(self.deviations(*self.names)) - (1 if self._paired else 2)

    @functools.cached_property
    def variance(self) -> Callable[..., float]:
        """Of the deviations."""
        return functools.cache(lambda *names: _product(self.deviations(*names), self.deviations(*names)) / self.degrees)

    def estimate(self, *names: str, common: Mapping[str, float] = NOTHING) -> Estimate | None:
        """The ratio of throughputs if these phases alone had changed; None where one is not there. `common`: the part
        of another phase's relative change that is taken out of theirs."""
        if not names or not set(names) <= set(self.names):
            return None
        base_s, current_s = self._sides_s(*names)
        for other, part in common.items():
            seconds = part * self.mean_s(*names) / self.mean_s(other)
            base_s, current_s = (
                [own_s - seconds * other_s for own_s, other_s in zip(*sides, strict=True)]
                for sides in zip((base_s, current_s), self._sides_s(other), strict=True)
            )
        rest_s = self.step_s - statistics.fmean(base_s)
        if min(*base_s, *current_s) + rest_s <= 0:
            return None
        base, current = ([-math.log((rest_s + s) / self.step_s) for s in side] for side in (base_s, current_s))
        if self._paired:
            return Estimate(Group.plain([x - y for x, y in zip(current, base, strict=True)]))
        return Estimate(Group.plain(current), Group.plain(base))


def _from_mean(values: Sequence[float]) -> list[float]:
    """Of each, the share of the mean that it is above it."""
    mean = statistics.fmean(values)
    return [value / mean - 1 if mean else 0.0 for value in values]


def _product(some: Sequence[float], others: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(some, others, strict=True))


@dataclass(frozen=True)
class PhaseVerdict:
    """A phase's ratio with the noise that the cells have in common, `alone`, and `beside` the other phases: less what
    it has in common with them from trial to trial; and what is decided of it, if anything."""

    alone: Estimate
    beside: Estimate
    decision: PhaseDecision | None = None

    @property
    def slower_by(self) -> Interval:
        """The share of the base's step that it takes longer."""
        by_beside = self.decision in ("slower", "unsettled")
        ratio = (self.beside if by_beside else self.alone).inverse.ratio.interval()
        return Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1)


NONE = PhaseTrials(1.0, {}, {})
"""Of a cell whose phases are not judged."""


def judge(cells: Sequence[PhaseTrials], rule: Rule) -> list[dict[str, PhaseVerdict]]:
    """The verdicts of each cell's phases; `rule` is that of a whole."""
    judged: list[dict[str, PhaseVerdict]] = [{} for _ in cells]
    for name in dict.fromkeys(name for cell in cells for name in cell.names):
        alone, beside = _pooled(cells, name), _beside(cells, name)
        for number in alone.keys() & beside.keys():
            surely = (
                alone[number].ratio.value < 1 - rule.threshold
                and _divided(rule, cells[number].share(name)).judge(beside[number].ratio) == "regression"
            )
            judged[number][name] = PhaseVerdict(alone[number], beside[number], "slower" if surely else None)
    sums = functools.cache(functools.partial(_beside, cells))

    def undone(number: int, name: str, level: float) -> bool:
        both = (sums(*sorted((name, other))).get(number) for other in cells[number].others(name))
        return any(estimate is None or estimate.ratio.limit(1 - level) >= 1 for estimate in both)

    slower = [(number, name) for number, phases in enumerate(judged) for name, one in phases.items() if one.decision]
    among, moved = sum(bool(cell.names) for cell in cells), slower
    of_all = _MOVED * rule.change_level * among
    level = of_all / max(1, among)
    while len(moved) > len(still := [one for one in moved if undone(*one, level)]):
        moved = still
        level = of_all / max(1, among - len({number for number, _ in set(slower) - set(moved)}))
    for number, name in moved:
        phases = judged[number]
        faster = {
            other: replace(phase, decision="faster")
            for other, phase in phases.items()
            if _divided(rule, cells[number].share(other)).judge(phase.alone.ratio) == "improved"
        }
        phases |= faster | {name: replace(phases[name], decision="moved" if faster else "unsettled")}
    return judged


def lost(phases: Mapping[str, PhaseVerdict]) -> str | None:
    """The phase that surely lost most; None where none did."""
    slower = [name for name, phase in phases.items() if phase.decision == "slower"]
    return min(slower, key=lambda name: phases[name].beside.ratio.log, default=None)


def power(cells: Sequence[PhaseTrials], judged: Sequence[Mapping[str, PhaseVerdict]], rule: Rule) -> float | None:
    """The share of phases in which a loss of `rule.slowdown` of the step would be seen."""
    sums = functools.cache(functools.partial(_beside, cells))
    surely_there = replace(rule, level=0.5, change_level=_MOVED * rule.change_level)
    shares = []
    for number, (cell, phases) in enumerate(zip(cells, judged, strict=True)):
        for name, phase in phases.items():
            both = (sums(*sorted((name, other))).get(number) for other in cell.others(name))
            seen = [surely_there.power(estimate.ratio) for estimate in both if estimate is not None]
            shares.append(min(_divided(rule, cell.share(name)).power(phase.beside.ratio), *seen, 1.0))
    return statistics.fmean(shares) if shares else None


def _divided(rule: Rule, share: float) -> Rule:
    return replace(rule, level=rule.level * share, change_level=rule.change_level * SHARE * share)


def _beside(cells: Sequence[PhaseTrials], *names: str) -> dict[int, Estimate]:
    """As `_pooled`, less what these phases have in common with the others: the part of the others' relative change from
    trial to trial that they show too, by least squares over all cells, each weighed by the noise of its whole. Nothing
    where too few trials tell it."""
    told = {n: cell for n, cell in enumerate(cells) if {*names} < {*cell.names} and cell.variance(*cell.names)}
    varied: dict[str, list[float]] = grouped(
        (other, cell.variance(other) / cell.variance(*cell.names))
        for cell in told.values()
        for other in cell.others(*names)
    )
    count = {name: 1 / max(1.0, statistics.fmean(of)) for name, of in varied.items()}
    weights = {n: _shares({o: count[o] * cell.mean_s(o) for o in cell.others(*names)}) for n, cell in told.items()}
    product = square = 0.0
    for n, cell in told.items():
        own = cell.deviations(*names)
        change = [0.0] * len(own)
        for other, weight in weights[n].items():
            change = [x + weight * y for x, y in zip(change, cell.deviations(other), strict=True)]
        product += _product(own, change) / cell.variance(*cell.names)
        square += _product(change, change) / cell.variance(*cell.names)
    tell = square and sum(cell.degrees for cell in told.values()) >= _TELLING
    part = min(1.0, max(0.0, product / square)) if tell else 0.0
    return _pooled(cells, *names, common={n: {o: part * w for o, w in of.items()} for n, of in weights.items()})


def _shares(of: Mapping[str, float]) -> dict[str, float]:
    """Without what has none."""
    return {name: amount / math.fsum(of.values()) for name, amount in of.items() if amount > 0}


def _pooled(
    cells: Sequence[PhaseTrials], *names: str, common: Mapping[int, Mapping[str, float]] = NOTHING
) -> dict[int, Estimate]:
    less = (cell.estimate(*names, common=common.get(n, {})) for n, cell in enumerate(cells))
    estimates = {n: estimate for n, estimate in enumerate(less) if estimate is not None}
    return dict(zip(estimates, noise.pooled(list(estimates.values())), strict=True))
