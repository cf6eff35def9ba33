"""Noisy binary search for the commit that made a cell slower. Pure functions of numbers.

A round is one trial of a commit and one of GOOD; its outcome is the logarithm of the ratio of their figures. The model:
commits before the slow one have a log ratio of 0, commits from it on share some loss, each commit may deviate a little,
and rounds scatter. From all rounds so far the search computes each commit's probability of being the slow one
(`probabilities`). The next round goes to the commit that gains the most information per second (`next`).

Binary search with noisy answers needs a near-minimal number of questions if each one is asked at the median of the
probabilities: M. Ben-Or and A. Hassidim, "The Bayesian Learner is Optimal for Noisy Binary Search (and Pretty Good for
Quantum as Well)", FOCS 2008; R. Karp and R. Kleinberg, "Noisy binary search and its applications", SODA 2007, for
unknown noise. This search differs in two ways. An answer is a number instead of yes or no, so a clear answer counts for
more; loss and scatter are unknown and are integrated out (A. F. M. Smith, "A Bayesian approach to inference about a
change-point in a sequence of random variables", Biometrika 62, 1975). And a commit that is not built yet costs more
than one that is: if builds are slow, the search stays at a commit until that commit is settled; otherwise it moves
on."""

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
from tcbench.analysis.welch import SampleStats

CERTAINTY = 0.95
"""Probability from which a commit is named."""

LEAST_ROUNDS = 2
"""Minimum number of rounds of the named commit and of the one before it, so that no name rests on one trial."""

_OWN = 0.005
"""Standard deviation of the log ratio of a commit that changes nothing.

The memory layout of a program makes it faster or slower by some tenths of a percent, and more rounds do not average
that away."""

_FARTHEST = 1.0
"""Rounds are clipped to this many losses below 0 and beyond the loss, so that one outlier does not inflate the
estimated scatter."""

_SCATTERS = np.geomspace(0.001, 0.5, 48)
"""Standard deviations of rounds that the model considers, equally likely on a log scale (Jeffreys prior)."""

_LEAST_WORTH = 1e-3
"""Bits that the best further round must be worth, if its commit is built; below that the search ends."""

_SIMULATED = 16
"""Number of simulated searches for an estimate of the remaining rounds."""


@dataclass(frozen=True)
class Round:
    """The outcome of one trial of a commit and one of GOOD: log(its figure / GOOD's figure), where more is better."""

    commit: int
    log_ratio: float


@dataclass(frozen=True)
class RoundCosts:
    """The cost of a round and of building a commit, in seconds."""

    round_s: float
    build_s: float


@dataclass(frozen=True)
class CommitSearch:
    """The state of a search: all rounds so far, and which commits are skipped or built.

    Commits are numbered from 0 (GOOD) to `commits` (BAD). `skipped` commits cannot be measured. Immutable: methods
    return the next state."""

    commits: int
    rounds: tuple[Round, ...] = ()
    skipped: frozenset[int] = frozenset()
    built: frozenset[int] = frozenset()

    def after(self, round_: Round) -> CommitSearch:
        """Return the search with one more round."""
        return replace(self, rounds=(*self.rounds, round_))

    def with_built(self, commit: int) -> CommitSearch:
        """Return the search with a commit marked as built."""
        return replace(self, built=self.built | {commit})

    def count(self, commit: int) -> int:
        """Return the number of rounds of a commit."""
        return sum(round_.commit == commit for round_ in self.rounds)

    @functools.cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of commits that no round can tell apart: a measurable commit and the skipped ones right before it."""
        groups: list[tuple[int, ...]] = []
        indistinguishable: list[int] = []
        for commit in range(1, self.commits + 1):
            indistinguishable.append(commit)
            if commit not in self.skipped:
                groups.append(tuple(indistinguishable))
                indistinguishable = []
        return tuple(groups)

    @functools.cached_property
    def probabilities(self) -> tuple[float, ...]:
        """The probability of each group that it contains the slow commit."""
        joint = self._joint.sum(axis=0)  # over all scatters
        return tuple(float(p) for p in joint / joint.sum())

    @functools.cached_property
    def scatter(self) -> float:
        """The standard deviation of a commit's rounds: the geometric mean over its posterior distribution."""
        weights = self._joint.sum(axis=1)
        return float(np.exp(np.average(np.log(_SCATTERS), weights=weights)))

    @functools.cached_property
    def _joint(self) -> Any:
        """Unnormalised posterior probabilities of scatter and group, shaped (scatters, groups)."""
        commits = sorted({round_.commit for round_ in self.rounds})
        low, high = self._limits()
        logs = [
            np.clip([round_.log_ratio for round_ in self.rounds if round_.commit == commit], low, high)
            for commit in commits
        ]
        counts = np.array([len(log_ratios) for log_ratios in logs], float)
        means = np.array([log_ratios.mean() for log_ratios in logs])
        squares = sum(float(((log_ratios - log_ratios.mean()) ** 2).sum()) for log_ratios in logs)
        own_variance, scatters = _OWN**2, _SCATTERS[:, None]
        weights = 1 / (own_variance + scatters**2 / np.maximum(counts, 1))  # inverse variance of each commit's mean
        # Weighted sums of means**0, means**1 and means**2: w over the commits before each group, v over the rest.
        before = np.array([[commit < group[-1] for commit in commits] for group in self.groups], float).T
        moments = [weights * means**power for power in (0, 1, 2)]
        (w0, w1, w2), (v0, v1, v2) = ([moment @ part for moment in moments] for part in (before, 1 - before))
        # GOOD's own deviation shifts all commits before the slow one alike. From the slow commit on, any mean is
        # equally likely.
        fast = w2 - w1**2 / (w0 + 1 / own_variance) + np.log1p(w0 * own_variance)
        slow = v2 - np.divide(v1**2, v0, out=np.zeros_like(v0), where=v0 > 0) + np.log(np.maximum(v0, 1e-300))
        scattered = np.log(weights).sum(axis=1) - 2 * (counts - 1).sum() * np.log(_SCATTERS) - squares / _SCATTERS**2
        likely = 0.5 * (scattered[:, None] - fast - slow) + np.log([len(group) for group in self.groups])
        return np.exp(likely - likely.max())

    def _limits(self) -> tuple[float, float]:
        """Return the limits that log ratios of rounds are clipped to, from BAD's loss and the scatter of its rounds;
        infinite before BAD has a round."""
        lost = [round_.log_ratio for round_ in self.rounds if round_.commit == self.commits]
        if not lost:
            return -math.inf, math.inf
        loss = statistics.median(lost)
        scatter = 1.5 * statistics.median(abs(log_ratio - loss) for log_ratio in lost)  # estimates the normal sigma
        margin = _FARTHEST * abs(loss) + 2 * scatter
        return min(loss, 0.0) - margin, max(loss, 0.0) + margin

    @property
    def likeliest(self) -> tuple[int, ...]:
        """The group that most probably contains the slow commit."""
        return max(zip(self.probabilities, self.groups, strict=True))[1]

    @property
    def certain(self) -> bool:
        """Whether one group contains the slow commit with a probability of at least CERTAINTY."""
        return max(self.probabilities) >= CERTAINTY

    def next(self, costs: RoundCosts) -> int | None:
        """Return the commit for the next round, or None when the search is over."""
        if self.certain:
            return self._to_confirm()
        best, best_worth, before = None, _LEAST_WORTH, 0.0
        for group, probability in zip(self.groups[:-1], self.probabilities, strict=False):
            before += probability  # that the slow commit is not after this group: what a round of it asks
            commit = group[-1]
            cost_s = 1.0 if commit in self.built else 1.0 + costs.build_s / costs.round_s
            worth = _entropy(before) * self._worth_of_round(commit) / cost_s
            if worth > best_worth:
                best, best_worth = commit, worth
        return best

    def _worth_of_round(self, commit: int) -> float:
        """Return how much one more round of a commit reduces its deviation's variance, relative to its first round."""
        # After n rounds the variance is _OWN**2 / (1 + n * ratio).
        n, ratio = self.count(commit), (_OWN / self.scatter) ** 2
        return (1 + ratio) / ((1 + n * ratio) * (1 + (n + 1) * ratio))

    def _to_confirm(self) -> int | None:
        """Return the likeliest slow commit or the measurable one before it, if it has too few rounds; else None."""
        place = self.groups.index(self.likeliest)
        pair = [self.groups[place][-1], *([self.groups[place - 1][-1]] if place else [])]
        return next((commit for commit in pair if self.count(commit) < LEAST_ROUNDS), None)

    @property
    def loss(self) -> Interval | None:
        """The ratio to GOOD over rounds from the likeliest commit on, with its 95% interval; None below two rounds."""
        logs = [round_.log_ratio for round_ in self.rounds if round_.commit >= self.likeliest[-1]]
        if len(logs) < welch.LEAST_TRIALS:
            return None
        return SampleStats.from_values(logs).geometric_mean.interval()

    def remaining(self, costs: RoundCosts) -> tuple[float, float]:
        """Return the average remaining rounds and seconds, from simulated searches.

        Each simulation draws the slow commit by its probability, and rounds by the estimated loss and scatter."""
        loss = self.loss
        log_loss = math.log(loss.value) if loss else 0.0
        generator = random.Random(0)
        ends = []
        for _ in range(_SIMULATED):
            (group,) = generator.choices(self.groups, self.probabilities)
            ends.append(_simulate_search(self, costs, lambda: generator.gauss(0.0, self.scatter), group[-1], log_loss))
        return statistics.fmean(rounds for rounds, _ in ends), statistics.fmean(seconds for _, seconds in ends)


_MOST_ROUNDS = 300
"""Rounds after which a simulated search is stopped."""


def _simulate_search(
    search: CommitSearch, costs: RoundCosts, noise: Callable[[], float], first: int, loss: float
) -> tuple[int, float]:
    """Return the rounds and seconds that a simulated search takes if `first` is the slow commit.

    `noise` draws the deviation of a round's log ratio, and `loss` is the log ratio from `first` on."""
    rounds, seconds = 0, 0.0
    while rounds < _MOST_ROUNDS and (commit := search.next(costs)) is not None:
        seconds += costs.round_s + (0.0 if commit in search.built else costs.build_s)
        search = search.with_built(commit).after(Round(commit, noise() + (loss if commit >= first else 0.0)))
        rounds += 1
    return rounds, seconds


def _entropy(p: float) -> float:
    """Return the entropy in bits of a yes-or-no question with probability `p`."""
    return 0.0 if p <= 0 or p >= 1 else -p * math.log2(p) - (1 - p) * math.log2(1 - p)
