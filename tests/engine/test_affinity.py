import os

import pytest

from tcbench.engine import affinity


@pytest.mark.parametrize(
    ("masks", "shares", "words"),
    [
        ([{0, 1, 2, 3}] * 2, [(0, 1), (2, 3)], "2 processors to each rank"),
        ([{0, 1, 2, 3}] * 3, [(0,), (1,), (2,)], "1 processor to each rank"),
        ([{4, 6}, {0, 2}], [(4, 6), (0, 2)], "bound by the launcher"),
        ([{0, 1}, {1, 2}], [(), ()], "overlapping, by the launcher"),
        ([{0}] * 3, [(), (), ()], "3 ranks on 1 processors, not bound"),
        ([{0, 1}], [(0, 1)], "alone on its host"),
    ],
)
def test_no_two_ranks_of_a_host_get_the_same_processor(monkeypatch, masks, shares, words):
    monkeypatch.setattr(affinity, "_topology", lambda processor, name: 0)
    shared = [affinity.share([frozenset(mask) for mask in masks], rank) for rank in range(len(masks))]
    assert shared == [(share, words) for share in shares]


def test_the_threads_of_a_core_stay_with_one_rank(tmp_path, monkeypatch):
    # Processors 0 and 2 are one core's, 1 and 3 the other's, as Linux counts most often.
    for processor, core in enumerate((0, 1, 0, 1)):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_id").write_text(f"{core}\n", "ascii")
        (folder / "physical_package_id").write_text("0\n", "ascii")
    monkeypatch.setattr(affinity, "_TOPOLOGY", tmp_path)
    masks = [frozenset(range(4))] * 2
    assert [affinity.share(masks, rank)[0] for rank in (0, 1)] == [(0, 2), (1, 3)]


def test_the_first_processors_are_those_that_the_first_rank_would_get(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5, 6, 7})
    monkeypatch.setattr(affinity, "_topology", lambda processor, name: processor % 2)
    first, _ = affinity.share([frozenset({4, 5, 6, 7})] * 2, 0)
    assert affinity.first(2) == first == (4, 6)
    assert affinity.first(0) == ()


def test_a_process_is_bound_to_its_processors():
    before = os.sched_getaffinity(0)
    try:
        affinity.bind([min(before)])
        assert os.sched_getaffinity(0) == {min(before)}
        affinity.bind([])
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("cores", "first", "rest"),
    [({0: 0, 1: 1, 2: 0, 3: 1}, (0, 2), (1, 3)), ({0: 0, 1: 0}, (0,), (1,)), ({5: 3}, (5,), (5,))],
)
def test_a_core_is_split_off_with_its_hardware_threads(monkeypatch, cores, first, rest):
    monkeypatch.setattr(affinity, "_place", lambda processor: (0, cores[processor], processor))
    assert affinity.split_core(tuple(cores)) == (first, rest)
