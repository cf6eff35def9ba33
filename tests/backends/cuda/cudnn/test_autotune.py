import pytest

from tcbench.backends.cuda.cudnn import autotune


class Bench:
    def __init__(self, times):
        self.times = iter(times)

    def times_s(self, run, repeats, runs_per_repeat):
        run()
        return next(self.times)


def plan(name, runs=None, failure=None):
    def run():
        if failure:
            raise failure
        if runs is not None:
            runs.append(name)

    return name, 64, run


def test_the_least_median_wins_whatever_the_outliers():
    bench = Bench([[3.0, 1.0, 3.0], [2.0, 2.0, 9.0], [2.5, 2.5, 0.1]])
    best, timed = autotune.fastest([plan("a"), plan("b"), plan("c")], bench)
    assert best == 1
    assert [(t.plan, t.time_s) for t in timed] == [("a", 3.0), ("b", 2.0), ("c", 2.5)]


def test_of_equals_the_heuristics_earlier_one_wins():
    best, _ = autotune.fastest([plan("a"), plan("b")], Bench([[1.0], [1.0]]))
    assert best == 0


def test_each_plan_warms_up_before_it_is_timed():
    runs = []
    autotune.fastest([plan("a", runs)], Bench([[1.0]]))
    assert len(runs) == autotune.WARM_UP_RUNS + 1


def test_a_plan_that_does_not_run_is_left_out():
    best, timed = autotune.fastest(
        [plan("broken", failure=RuntimeError("no")), plan("b"), plan("c")], Bench([[2.0], [1.0]])
    )
    assert best == 2
    assert [t.plan for t in timed] == ["b", "c"]


def test_when_none_runs_the_failure_is_told():
    with pytest.raises(RuntimeError, match="out of luck"):
        autotune.fastest([plan("broken", failure=RuntimeError("out of luck"))], Bench([]))
