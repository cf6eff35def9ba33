"""The search for the commit that made a cell slower, where every measurement is noisy. Pure functions of numbers.

A round is a trial of a commit beside one of GOOD; what it tells is the logarithm of the ratio of their figures. Before
the commit that is searched for the truth is 0, from it on some loss; any commit may lie a little off that, and rounds
scatter about it. Given all rounds so far, each commit is that one with a probability (`probabilities`), and the next
round goes to the commit that tells most for what it costs (`next`).

Questions with noisy answers find a place in as few as noise allows where each is put at the median of the
probabilities: M. Ben-Or and A. Hassidim, "The Bayesian Learner is Optimal for Noisy Binary Search (and Pretty Good
for Quantum as Well)", FOCS 2008; R. Karp and R. Kleinberg, "Noisy binary search and its applications", SODA 2007, for
noise that is not known. Two things differ here. An answer is a number and not yes or no, so that a clear one counts
for more; loss and scatter are not known, and are integrated out (A. F. M. Smith, "A Bayesian approach to inference
about a change-point in a sequence of random variables", Biometrika 62, 1975). And a commit that is not ready costs
more than one that is, so that a round is worth its information per second: the search stays at a commit until that is
sure enough where making one ready takes long, and moves on where not.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tcbench.analysis import welch
from tcbench.analysis.stats import Interval
from tcbench.analysis.welch import Group

CERTAINTY = 0.95
"""The probability from which on a commit is named."""

LEAST_ROUNDS = 2
"""Of the commit that is named and of the one before: no name rests on one trial."""

_OWN = 0.005
"""How far a commit that changes nothing may be off: where a program lies in memory makes it faster or slower by some
tenths of a percent, and no number of rounds averages that away."""

_FARTHEST = 1.0
"""Rounds are clipped to this many losses beyond 0 and beyond the loss, so that one freak trial does not widen the
scatter of all."""

_SCATTERS = np.geomspace(0.001, 0.5, 48)
"""Standard deviations of rounds between which the truth may lie, all as likely in logarithms (Jeffreys's prior)."""

_LEAST_WORTH = 1e-3
"""Bits per round of a commit that is ready: below that no more is to be known."""

_SIMULATED = 16
"""Searches that are played to their end for an estimate of what is left."""


@dataclass(frozen=True)
class Round:
    """A trial of a commit beside one of GOOD: log(its figure / GOOD's), more being better."""

    commit: int
    log_ratio: float


@dataclass(frozen=True)
class RoundCosts:
    """Seconds of a round, and of making a commit ready."""

    round_s: float
    build_s: float


@dataclass(frozen=True)
class CommitSearch:
    """All that is known so far. Commits are numbered 1 to `commits`, GOOD being 0 and BAD the last. `skipped` cannot be
    measured, `built` are ready. Immutable: `after` and the others return the next state."""

    commits: int
    rounds: tuple[Round, ...] = ()
    skipped: frozenset[int] = frozenset()
    built: frozenset[int] = frozenset()

    def after(self, round_: Round) -> CommitSearch:
        return replace(self, rounds=(*self.rounds, round_))

    def with_built(self, commit: int) -> CommitSearch:
        return replace(self, built=self.built | {commit})

    def count(self, commit: int) -> int:
        return sum(round_.commit == commit for round_ in self.rounds)

    @functools.cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Commits that no round can tell apart: each that can be measured, with those skipped right before it."""
        groups: list[tuple[int, ...]] = []
        waiting: list[int] = []
        for commit in range(1, self.commits + 1):
            waiting.append(commit)
            if commit not in self.skipped:
                groups.append(tuple(waiting))
                waiting = []
        return tuple(groups)

    @functools.cached_property
    def probabilities(self) -> tuple[float, ...]:
        """Of each group, that the commit is one of it."""
        joint = self._joint.sum(axis=0)
        return tuple(float(p) for p in joint / joint.sum())

    @functools.cached_property
    def scatter(self) -> float:
        """The standard deviation of rounds of one commit, by its mean logarithm over all that it may be."""
        weights = self._joint.sum(axis=1)
        return float(np.exp(np.average(np.log(_SCATTERS), weights=weights)))

    @functools.cached_property
    def _joint(self) -> Any:
        """Probabilities up to a factor, shaped (scatters, groups)."""
        commits = sorted({round_.commit for round_ in self.rounds})
        low, high = self._limits()
        logs = [
            np.clip([round_.log_ratio for round_ in self.rounds if round_.commit == commit], low, high)
            for commit in commits
        ]
        counts = np.array([len(of_commit) for of_commit in logs], float)
        means = np.array([of_commit.mean() for of_commit in logs])
        squares = sum(float(((of_commit - of_commit.mean()) ** 2).sum()) for of_commit in logs)
        own, scatters = _OWN**2, _SCATTERS[:, None]
        weights = 1 / (own + scatters**2 / np.maximum(counts, 1))  # of each commit's mean
        # Sums over the commits before each group, and over the others.
        before = np.array([[commit < group[-1] for commit in commits] for group in self.groups], float).T
        sums = [(weights * means**power) for power in (0, 1, 2)]
        (w0, w1, w2), (v0, v1, v2) = ([round_ @ part for round_ in sums] for part in (before, 1 - before))
        # GOOD too is off by its own, which all before share; from the commit on the mean may be anything.
        fast = w2 - w1**2 / (w0 + 1 / own) + np.log1p(w0 * own)
        slow = v2 - np.divide(v1**2, v0, out=np.zeros_like(v0), where=v0 > 0) + np.log(np.maximum(v0, 1e-300))
        scattered = np.log(weights).sum(axis=1) - 2 * (counts - 1).sum() * np.log(_SCATTERS) - squares / _SCATTERS**2
        likely = 0.5 * (scattered[:, None] - fast - slow) + np.log([len(group) for group in self.groups])
        return np.exp(likely - likely.max())

    def _limits(self) -> tuple[float, float]:
        """The limits that rounds are clipped to, by what BAD lost and how its rounds scatter."""
        lost = [round_.log_ratio for round_ in self.rounds if round_.commit == self.commits]
        if not lost:
            return -math.inf, math.inf
        loss = statistics.median(lost)
        scatter = 1.5 * statistics.median(abs(round_ - loss) for round_ in lost)  # as a normal deviate's
        off = _FARTHEST * abs(loss) + 2 * scatter
        return min(loss, 0.0) - off, max(loss, 0.0) + off

    @property
    def likeliest(self) -> tuple[int, ...]:
        """The group that it most probably is in."""
        return max(zip(self.probabilities, self.groups, strict=True))[1]

    @property
    def certain(self) -> bool:
        """Whether a group is surely the one; which cannot be parted further."""
        return max(self.probabilities) >= CERTAINTY

    def next(self, costs: RoundCosts) -> int | None:
        """The commit that the next round goes to; None when the search is over."""
        if self.certain:
            return self._to_confirm()
        best, most, before = None, _LEAST_WORTH, 0.0
        for group, probability in zip(self.groups[:-1], self.probabilities, strict=False):
            before += probability
            commit = group[-1]
            cost_s = 1.0 if commit in self.built else 1.0 + costs.build_s / costs.round_s
            worth = _entropy(before) * self._news(commit) / cost_s
            if worth > most:
                best, most = commit, worth
        return best

    def _news(self, commit: int) -> float:
        """The worth of one more round of a commit over that of its first."""
        n, ratio = self.count(commit), (_OWN / self.scatter) ** 2
        return (1 + ratio) / ((1 + n * ratio) * (1 + (n + 1) * ratio))

    def _to_confirm(self) -> int | None:
        """The likeliest commit, or the one before it, where it has too few rounds."""
        place = self.groups.index(self.likeliest)
        pair = [self.groups[place][-1], *([self.groups[place - 1][-1]] if place else [])]
        return next((commit for commit in pair if self.count(commit) < LEAST_ROUNDS), None)

    @property
    def loss(self) -> Interval | None:
        """The ratio from the likeliest commit on over GOOD, with its 95% interval; None below two rounds."""
        logs = [round_.log_ratio for round_ in self.rounds if round_.commit >= self.likeliest[-1]]
        if len(logs) < welch.LEAST_TRIALS:
            return None
        return Group.plain(logs).geometric_mean.interval()

    def left(self, costs: RoundCosts) -> tuple[float, float]:
        """Rounds and seconds that are left on average, from searches played to their end: the commit drawn by its
        probability, the rounds by loss and scatter as they are known."""
        loss = self.loss
        lost = math.log(loss.value) if loss else 0.0
        draw = random.Random(0)
        ends = []
        for _ in range(_SIMULATED):
            (group,) = draw.choices(self.groups, self.probabilities)
            ends.append(_played(self, costs, lambda: draw.gauss(0.0, self.scatter), group[-1], lost))
        return statistics.fmean(rounds for rounds, _ in ends), statistics.fmean(seconds for _, seconds in ends)


_MOST_ROUNDS = 300


def _played(
    search: CommitSearch, costs: RoundCosts, noise: Callable[[], float], first: int, loss: float
) -> tuple[int, float]:
    """Rounds and seconds to the end of a search whose commit is `first`."""
    rounds, seconds = 0, 0.0
    while rounds < _MOST_ROUNDS and (commit := search.next(costs)) is not None:
        seconds += costs.round_s + (0.0 if commit in search.built else costs.build_s)
        search = search.with_built(commit).after(Round(commit, noise() + (loss if commit >= first else 0.0)))
        rounds += 1
    return rounds, seconds


def _entropy(p: float) -> float:
    """Bits of a yes or no."""
    return 0.0 if p <= 0 or p >= 1 else -p * math.log2(p) - (1 - p) * math.log2(1 - p)
