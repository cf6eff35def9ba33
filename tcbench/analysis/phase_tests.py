"""Whether a phase of the step got slower: judged beside the whole, which varies more than one phase does.

A phase counts as the throughput of a step in which nothing else changed, base's step over base's step and the seconds
that the phase gained: so a loss in it has the unit, the threshold, the rules and the moderated noise of the whole. What
slows a trial slows all its phases: the part of the others' relative change that a phase shares is taken out of its own
(analysis of covariance; R. Fisher, "Statistical Methods for Research Workers", 4th edition 1932). A cell regresses by a
phase where

- the loss is surely above the threshold, and surely there: the union of all phases' tests, each at its part of the
  level (union-intersection: S. Roy, "On a heuristic method of test construction and its use in multivariate analysis",
  Annals of Mathematical Statistics 24, 1953; Bonferroni's inequality bounds it);
- its own times seem to have lost as much: beside phases that got faster one that did not change seems slower;
- no other phase surely undoes it: with each of the others the sum of both must surely be slower (intersection-union: R.
  Berger, Technometrics 24, 1982), at a level for all cells, which those that pass leave to the rest (S. Holm, "A simple
  sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979). What else was won where
  the loss came from is work that moved;
- the whole is not settled: what surely lost less than the threshold is no regression.
"""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tcbench.analysis import noise, rounds, verdict
from tcbench.analysis.stats import Interval
from tcbench.analysis.verdict import Decided, Figures, Interim, Rule
from tcbench.analysis.welch import LEAST_TRIALS, Estimate, Group

SHARE = 0.1
"""The level of "anything changed" that the phases of all cells have together, over that of the wholes, which keep
theirs: no verdict of a whole is another for its phases. A phase scatters by less than the threshold: that is enough."""

_TELLING = 16
"""Degrees of freedom, of all cells together, that tell what phases have in common; to tell it takes one."""

PhaseDecision = Literal["slower", "moved"]
"""Surely slower by more than the threshold; the same, but another phase may have won as much."""


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

    @functools.cached_property
    def _sums_s(self) -> Callable[..., list[list[float]]]:
        """Of both sides, by trial: the seconds of some phases together."""

        def sums(*names: str) -> list[list[float]]:
            sides = (self.base, self.current)
            return [[*map(math.fsum, zip(*(side[name] for name in names), strict=False))] for side in sides]

        return functools.cache(sums)

    def over_others(self, *names: str) -> float:
        """How long they are over how long the others are; 0 where there are none."""
        own_s, others_s = (math.fsum(self._sums_s(*which)[0]) for which in (names, self.others(*names)))
        return own_s / others_s if others_s else 0.0

    def estimate(self, *names: str, common: float = 0.0) -> Estimate | None:
        """The ratio of throughputs if these phases alone had changed; None where one is not there. With `common` so
        much of the others' relative change is taken out of theirs."""
        if not names or not set(names) <= set(self.names):
            return None
        base_s, current_s = self._sums_s(*names)
        if part := common * self.over_others(*names):
            base_s, current_s = (
                [s - part * other_s for s, other_s in zip(own_s, others_s, strict=False)]
                for own_s, others_s in zip(self._sums_s(*names), self._sums_s(*self.others(*names)), strict=True)
            )
        rest_s = self.step_s - statistics.fmean(base_s)
        if min(*base_s, *current_s) + rest_s <= 0:
            return None
        base, current = ([-math.log((rest_s + s) / self.step_s) for s in side] for side in (base_s, current_s))
        if self.by_round and len(base) == len(current):
            return Estimate(Group.plain([x - y for x, y in zip(current, base, strict=True)]))
        return Estimate(Group.plain(current), Group.plain(base))


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
        ratio = (self.beside if self.decision == "slower" else self.alone).inverse.ratio.interval()
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
                and _divided(rule, len(cells[number].names)).judge(beside[number].ratio) == "regression"
            )
            judged[number][name] = PhaseVerdict(alone[number], beside[number], "slower" if surely else None)
    sums = functools.cache(functools.partial(_beside, cells))

    def undone(number: int, name: str, level: float) -> bool:
        both = (sums(*sorted((name, other))).get(number) for other in cells[number].others(name))
        return any(estimate is None or estimate.ratio.limit(1 - level) >= 1 for estimate in both)

    slower = [(number, name) for number, phases in enumerate(judged) for name, one in phases.items() if one.decision]
    among, level, moved = sum(bool(cell.names) for cell in cells), rule.change_level, slower
    while len(moved) > len(still := [one for one in moved if undone(*one, level)]):
        moved = still
        level = rule.change_level * among / max(1, among - len({number for number, _ in set(slower) - set(moved)}))
    for number, name in moved:
        judged[number][name] = replace(judged[number][name], decision="moved")
    return judged


def lost(phases: Mapping[str, PhaseVerdict]) -> str | None:
    """The phase that surely lost most; None where none did."""
    slower = [name for name, phase in phases.items() if phase.decision == "slower"]
    return min(slower, key=lambda name: phases[name].beside.ratio.log, default=None)


def judge_interim(
    cells: Sequence[Figures],
    phases: Sequence[PhaseTrials],
    decided: Sequence[Decided | None],
    number: int,
    looks: Sequence[Interim],
    estimate: Callable[[Sequence[float], Sequence[float]], Estimate] = rounds.estimate,
) -> list[Decided | None]:
    """As `verdict.judge_interim`; what the whole leaves open may be decided by a phase."""
    rule = looks[number].rule.among(len(cells))
    by_whole = verdict.judge_interim(cells, decided, number, looks, estimate)
    return [
        one or (("regression", number) if lost(judged) else None)
        for one, judged in zip(by_whole, judge(phases, rule), strict=True)
    ]


def power(cells: Sequence[PhaseTrials], judged: Sequence[Mapping[str, PhaseVerdict]], rule: Rule) -> float | None:
    """The share of phases in which a loss of `rule.slowdown` of the step would be seen."""
    sums = functools.cache(functools.partial(_beside, cells))
    surely_there = replace(rule, level=0.5)
    shares = []
    for number, (cell, phases) in enumerate(zip(cells, judged, strict=True)):
        for name, phase in phases.items():
            both = (sums(*sorted((name, other))).get(number) for other in cell.others(name))
            seen = [surely_there.power(estimate.ratio) for estimate in both if estimate is not None]
            shares.append(min(_divided(rule, len(phases)).power(phase.beside.ratio), *seen, 1.0))
    return statistics.fmean(shares) if shares else None


def _divided(rule: Rule, among: int) -> Rule:
    return replace(rule, level=rule.level / among, change_level=rule.change_level * SHARE / among)


def _beside(cells: Sequence[PhaseTrials], *names: str) -> dict[int, Estimate]:
    """As `_pooled`, less what these phases have in common with the others: the part of the others' relative change from
    trial to trial that they show too, by least squares over all cells, each weighed by the noise of its whole. Nothing
    where too few trials tell it."""
    products, squares, degrees = [], [], 0.0
    for cell in cells:
        estimates = [cell.estimate(*which) for which in (names, cell.others(*names), cell.names)]
        own, others, whole = (estimate.ratio.error**2 if estimate else 0.0 for estimate in estimates)
        if estimates[0] and own and others and whole:
            scale = cell.over_others(*names)
            products.append((whole - own - others) / 2 * scale / whole)
            squares.append(others * scale**2 / whole)
            degrees += noise.degrees_of(estimates[0])
    told = degrees >= _TELLING
    return _pooled(cells, *names, common=min(1.0, max(0.0, math.fsum(products) / math.fsum(squares))) if told else 0.0)


def _pooled(cells: Sequence[PhaseTrials], *names: str, common: float = 0.0) -> dict[int, Estimate]:
    estimates = {n: e for n, cell in enumerate(cells) if (e := cell.estimate(*names, common=common)) is not None}
    return dict(zip(estimates, noise.pooled(list(estimates.values())), strict=True))
