"""A bisection in words: each step, what is left, and the verdict."""

import math
from collections.abc import Collection

from tcbench.commands.gate.bisect.bisection import CERTAINTY
from tcbench.commands.gate.bisect.search import Bisection
from tcbench.show.format import change, counted, duration, percent


def outlook(of: Bisection, ready: Collection[str]) -> str:
    """The cell and its loss, the cost of a step, and about how many rounds will name the commit."""
    search = of.search(ready)
    rounds, seconds = search.left(of.costs)
    loss = f" {change(of.loss.ratio)} ({change(of.loss.low)} to {change(of.loss.high)})" if of.loss else ""
    return (
        f"{of.cell}: {of.figure}{loss}; a round is a trial of a commit and one of GOOD "
        f"({of.costs.round_s:.1f} s), a commit takes {of.costs.build_s:.1f} s to make ready; "
        f"about {counted(round(rounds), 'round')}, {duration(seconds)}"
    )


def step(before: Bisection, of: Bisection, ready: Collection[str]) -> list[str]:
    """A line for the round or the skipped commit that came last, with what is left; none where nothing came."""
    if len(of.skipped) > len(before.skipped):
        last = of.skipped[-1]
        return [f"{_named(of, last.commit)}: skipped: {last.reason}"]
    if len(of.rounds) == len(before.rounds):
        return []
    last_round = of.rounds[-1]
    built = f", made ready in {of.built[-1].seconds:.1f} s" if len(of.built) > len(before.built) else ""
    words = [
        f"[{len(of.rounds)}] {_named(of, last_round.commit)}: {change(math.exp(last_round.log_ratio))} "
        f"in {last_round.seconds:.1f} s{built}"
    ]
    search = of.search(ready)
    top = of.candidates[0]
    words.append(f"{_commits(of, top.commits)} with {percent(top.probability, 0)}")
    if search.next(of.costs) is not None:
        rounds, seconds = search.left(of.costs)
        words.append(f"about {counted(max(1, round(rounds)), 'round')} left (ETA {duration(seconds)})")
    return ["; ".join(words)]


def _named(of: Bisection, commit: str) -> str:
    """`a1b2c3d4e5f6 (7 of 20)`."""
    return f"{commit[:12]} ({of.place(commit)} of {len(of.commits)})"


def _commits(of: Bisection, commits: tuple[str, ...]) -> str:
    return _named(of, commits[0]) if len(commits) == 1 else f"one of {', '.join(commit[:12] for commit in commits)}"


def verdict(of: Bisection) -> list[str]:
    """The verdict, what it rests on, and its cost."""
    cost = f"{counted(len(of.rounds), 'round')}, {counted(of.trials, 'trial')}, {counted(len(of.built), 'build')}"
    lines = [*_verdict(of), f"{cost}, {duration(of.seconds + sum(one.seconds for one in of.built[:2]))}"]
    if of.skipped:
        lines.append(f"skipped: {', '.join(f'{one.commit[:12]} ({one.reason})' for one in of.skipped)}")
    return lines


def _verdict(of: Bisection) -> list[str]:
    loss = f"{change(of.loss.ratio)} ({change(of.loss.low)} to {change(of.loss.high)})" if of.loss else ""
    if of.state == "no loss":
        return [f"no loss: {of.bad[:12]} is not slower than {of.good[:12]}; nothing to search for"]
    if of.state == "named" and of.named is not None:
        probability = of.candidates[0].probability
        at, before = of.named, of.commit(of.place(of.named) - 1)
        counts = [sum(one.commit == commit for one in of.rounds) for commit in (at, before)]
        parent = "GOOD itself" if before == of.good else counted(counts[1], "round")
        return [
            f"{of.named[:12]} made {of.cell} slower: {of.subjects[of.place(of.named) - 1]}",
            f"{of.figure} {loss} from there on; {percent(probability)} sure; "
            f"{counted(counts[0], 'round')} of it, of the one before: {parent}",
        ]
    if of.state == "narrowed down":
        commits = of.candidates[0].commits
        names = "\n".join(f"  {commit[:12]} {of.subjects[of.place(commit) - 1]}" for commit in commits)
        return [
            f"NOT SETTLED: one of {len(commits)} commits made {of.cell} slower ({loss}); all but the last cannot be "
            f"measured:\n{names}"
        ]
    if of.cell is None:
        return [
            f"NOT SETTLED: whether {of.bad[:12]} is slower than {of.good[:12]} is not known; more trials (--looks "
            "6,12,24), a longer --budget or a lower --threshold may tell"
        ]
    likely = "\n".join(f"  {percent(one.probability, 0):>4} {_commits(of, one.commits)}" for one in of.candidates[:3])
    how = "the same command goes on" if of.state == "searching" else "more rounds would not tell"
    return [f"NOT SETTLED: no commit is {percent(CERTAINTY, 0)} sure to have made {of.cell} slower; {how}:\n{likely}"]
