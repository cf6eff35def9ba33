"""A bisection in words: each round, the remaining cost, and the verdict."""

import math
from collections import Counter
from collections.abc import Collection

from tcbench.commands.gate.bisect.bisection import CERTAINTY
from tcbench.commands.gate.bisect.search import Bisection
from tcbench.show.format import change, counted, duration, percent


def outlook(bisection: Bisection, ready: Collection[str]) -> str:
    """Return a line with the cell and its loss, the cost of a round, and the expected number of rounds."""
    costs = bisection.costs
    rounds, seconds = bisection.search(ready).remaining(costs)
    loss = f" {_loss(bisection)}" if bisection.loss else ""
    return (
        f"{bisection.cell}: {bisection.figure}{loss}; a round is a trial of a commit and one of GOOD "
        f"({costs.round_s:.1f} s), a commit takes {costs.build_s:.1f} s to build; "
        f"about {counted(round(rounds), 'round')}, {duration(seconds)}"
    )


def step_lines(before: Bisection, bisection: Bisection, ready: Collection[str]) -> list[str]:
    """Return a line for the latest round or skipped commit, with the remaining cost; empty if neither is new."""
    rounds, builds = bisection.rounds, bisection.built
    if len(bisection.skipped) > len(before.skipped):
        skipped = bisection.skipped[-1]
        return [f"{_numbered(bisection, skipped.commit)}: skipped: {skipped.reason}"]
    if len(rounds) == len(before.rounds):
        return []
    build = f", built in {builds[-1].seconds:.1f} s" if len(builds) > len(before.built) else ""
    words = [
        f"[{len(rounds)}] {_numbered(bisection, rounds[-1].commit)}: {change(math.exp(rounds[-1].log_ratio))} "
        f"in {rounds[-1].seconds:.1f} s{build}"
    ]
    search = bisection.search(ready)
    likeliest = bisection.candidates[0]
    words.append(f"most likely {_one_of(bisection, likeliest.commits)}: {percent(likeliest.probability, 0)}")
    if search.next(bisection.costs) is not None:
        rounds_left, seconds = search.remaining(bisection.costs)
        words.append(f"about {counted(max(1, round(rounds_left)), 'round')} left (ETA {duration(seconds)})")
    return ["; ".join(words)]


def _loss(bisection: Bisection) -> str:
    """Return the loss with its interval: `-8.1% (-9.0% to -7.2%)`."""
    loss = bisection.loss
    return f"{change(loss.ratio)} ({change(loss.low)} to {change(loss.high)})" if loss else ""


def _numbered(bisection: Bisection, commit: str) -> str:
    """Return a commit with its number: `a1b2c3d4e5f6 (7 of 20)`."""
    return f"{commit[:12]} ({bisection.place(commit)} of {len(bisection.commits)})"


def _one_of(bisection: Bisection, commits: tuple[str, ...]) -> str:
    """Return the commits of a candidate in words."""
    if len(commits) == 1:
        return _numbered(bisection, commits[0])
    return f"one of {', '.join(commit[:12] for commit in commits)}"


def verdict(bisection: Bisection) -> list[str]:
    """Return the lines of the verdict, its evidence, and its cost."""
    rounds, builds = bisection.rounds, bisection.built
    seconds = bisection.seconds + sum(build.seconds for build in builds[:2])  # GOOD and BAD: not in `seconds`
    cost = f"{counted(len(rounds), 'round')}, {counted(bisection.trials, 'trial')}, {counted(len(builds), 'build')}"
    lines = [*_verdict(bisection), f"{cost}, {duration(seconds)}"]
    if bisection.skipped:
        reasons = (f"{skipped.commit[:12]} ({skipped.reason})" for skipped in bisection.skipped)
        lines.append(f"skipped: {', '.join(reasons)}")
    return lines


def _verdict(bisection: Bisection) -> list[str]:
    """Return the lines of the verdict and its evidence."""
    good, bad, cell, culprit = bisection.good, bisection.bad, bisection.cell, bisection.named
    subjects = dict(zip(bisection.commits, bisection.subjects, strict=True))
    if bisection.state == "no loss":
        return [f"no loss: {bad[:12]} is not slower than {good[:12]}; nothing to search for"]
    if bisection.state == "named" and culprit is not None:
        parent = bisection.commit(bisection.place(culprit) - 1)
        counts = Counter(round_.commit for round_ in bisection.rounds)
        parent_rounds = "its parent is GOOD" if parent == good else f"{counts[parent]} of its parent"
        sure = percent(bisection.candidates[0].probability)
        return [
            f"{culprit[:12]} made {cell} slower: {subjects[culprit]}",
            f"{bisection.figure} {_loss(bisection)} since that commit; {sure} certain; "
            f"{counted(counts[culprit], 'round')} of it, {parent_rounds}",
        ]
    if bisection.state == "narrowed down":
        commits = bisection.candidates[0].commits
        names = "\n".join(f"  {commit[:12]} {subjects[commit]}" for commit in commits)
        return [
            f"NOT SETTLED: one of {len(commits)} commits made {cell} slower ({_loss(bisection)}); all but the last "
            f"cannot be measured:\n{names}"
        ]
    if cell is None:
        return [
            f"NOT SETTLED: it is not known whether {bad[:12]} is slower than {good[:12]}; more trials "
            "(--looks 6,12,24), a longer --budget or a lower --threshold may settle it"
        ]
    likely = "\n".join(
        f"  {percent(candidate.probability, 0):>4} {_one_of(bisection, candidate.commits)}"
        for candidate in bisection.candidates[:3]
    )
    how = "the same command continues" if bisection.state == "searching" else "more rounds would not settle it"
    return [f"NOT SETTLED: no commit is {percent(CERTAINTY, 0)} certain to have made {cell} slower; {how}:\n{likely}"]
