"""The search for a slow commit finds it as often as it says, in about as few rounds as noise allows."""

import random
import statistics
from dataclasses import replace

import pytest

from tcbench.commands.gate.bisect.bisection import CERTAINTY, CommitSearch, Round, RoundCosts

COMMITS = 20
FREE, DEAR = RoundCosts(1.0, 0.0), RoundCosts(1.0, 10.0)


def started(loss: float, scatter: float, draw: random.Random, rounds: int = 4) -> CommitSearch:
    """A search that begins with rounds of BAD, which a gate has found slower: by the loss on average, exactly, as only
    what is clear gets so far."""
    deviations = [draw.gauss(0.0, scatter) for _ in range(rounds)]
    mean = statistics.fmean(deviations)
    search = CommitSearch(COMMITS, built=frozenset({COMMITS}))
    for deviation in deviations:
        search = search.after(Round(COMMITS, loss + deviation - mean))
    return search


def played(
    search: CommitSearch, first: int, loss: float, scatter: float, costs: RoundCosts, draw: random.Random, spread=0.0
):
    """The search at its end, and its rounds; `first` is the slow commit."""
    rounds, off = 0, [draw.gauss(0.0, spread) for _ in range(COMMITS + 1)]
    while (commit := search.next(costs)) is not None:
        truth = (loss if commit >= first else 0.0) + off[commit]
        search = search.with_built(commit).after(Round(commit, draw.gauss(truth, scatter)))
        rounds += 1
        assert rounds < 300
    return search, rounds


@pytest.mark.parametrize(
    ("loss", "scatter", "spread", "most"),
    [(-0.08, 0.01, 0.0, 8), (-0.08, 0.02, 0.0, 9), (-0.08, 0.03, 0.0, 13), (-0.08, 0.02, 0.005, 10)],
)
def test_it_names_the_commit_as_often_as_it_is_certain_in_few_rounds(loss, scatter, spread, most):
    draw = random.Random(5)
    ends = []
    for game in range(60):
        first = 1 + game % COMMITS
        search, rounds = played(started(loss, scatter, draw), first, loss, scatter, FREE, draw, spread)
        ends.append((search.certain, search.likeliest == (first,), rounds))
    assert all(certain for certain, _, _ in ends)
    assert statistics.fmean(right for _, right, _ in ends) >= CERTAINTY - 0.03
    assert statistics.fmean(rounds for *_, rounds in ends) <= most


def test_without_noise_it_is_a_bisection_with_its_result_confirmed():
    draw = random.Random(0)
    for first in range(1, COMMITS + 1):
        search, rounds = played(started(-0.1, 0.0005, draw), first, -0.1, 0.0005, FREE, draw)
        assert search.likeliest == (first,)
        assert len(search.built) - 1 <= 5  # log2(20) is 4.3
        assert rounds <= 7


def test_where_building_is_dear_fewer_commits_are_built_for_more_rounds():
    def builds_and_rounds(costs):
        draw = random.Random(2)
        ends = [played(started(-0.08, 0.03, draw), 1 + n % 20, -0.08, 0.03, costs, draw) for n in range(30)]
        return statistics.fmean(len(s.built) for s, _ in ends), statistics.fmean(rounds for _, rounds in ends)

    cheap, dear = builds_and_rounds(FREE), builds_and_rounds(DEAR)
    assert dear[0] < cheap[0]
    assert dear[1] > cheap[1]


def test_commits_that_cannot_be_measured_stay_with_the_next_one_that_can():
    draw = random.Random(1)
    search = replace(started(-0.1, 0.01, draw), skipped=frozenset({9, 10, 11}))
    assert (9, 10, 11, 12) in search.groups
    search, _ = played(search, 10, -0.1, 0.01, FREE, draw)
    assert search.likeliest == (9, 10, 11, 12)
    assert search.certain
    assert not {round_.commit for round_ in search.rounds} & {9, 10, 11}


def test_no_commit_is_named_by_one_round_of_it_or_of_the_one_before():
    draw = random.Random(3)
    for first in (1, 7, 20):
        search, _ = played(started(-0.5, 0.001, draw), first, -0.5, 0.001, FREE, draw)
        assert search.count(first) >= 2
        assert first == 1 or search.count(first - 1) >= 2


def test_one_commit_needs_no_search():
    search = CommitSearch(1).after(Round(1, -0.1)).after(Round(1, -0.11))
    assert (search.next(FREE), search.likeliest, search.certain) == (None, (1,), True)
    assert search.loss.value == pytest.approx(0.9, abs=0.01)


def test_the_estimate_of_what_is_left_is_about_what_it_comes_to():
    draw = random.Random(4)
    search = started(-0.08, 0.02, draw)
    rounds, seconds = search.remaining(RoundCosts(2.0, 5.0))
    came = [played(search, 1 + n % 20, -0.08, 0.02, RoundCosts(2.0, 5.0), draw)[1] for n in range(20)]
    assert rounds == pytest.approx(statistics.fmean(came), rel=0.35)
    assert seconds > 2 * rounds


def test_where_more_rounds_tell_nothing_the_search_ends_uncertain():
    """Commits that differ by as much as the loss, whatever they change."""
    draw = random.Random(6)
    search, rounds = played(started(-0.012, 0.001, draw), 8, -0.012, 0.001, FREE, draw, spread=0.01)
    assert rounds < 300
    assert search.next(FREE) is None
