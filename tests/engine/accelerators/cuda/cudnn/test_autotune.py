import numpy as np
import pytest
from fake_cupy import Gpu, install_cupy

from tcbench.engine.accelerators.cuda.cudnn import autotune
from tcbench.engine.work import Add


class Bench:
    """`times`: one list for each plan that runs, of which the trial takes the first. `looks`: repeats and runs per
    repeat, as asked."""

    def __init__(self, times):
        self.times = iter(times)
        self.looks = []
        self.current = []

    def times_s(self, run, repeats, runs_per_repeat):
        run()
        self.looks.append((repeats, runs_per_repeat))
        if (repeats, runs_per_repeat) == (autotune.TRIAL_REPEATS, 1):
            self.current = next(self.times)
        return self.current[: autotune.TRIAL_REPEATS] if repeats == autotune.TRIAL_REPEATS else self.current


class PlannedBench:
    """A device on which a run takes `run_s`. `passed_s`: the device time of all runs, `runs` their number."""

    def __init__(self, run_s):
        self.run_s = run_s
        self.passed_s = 0.0
        self.runs = []

    def times_s(self, run, repeats, runs_per_repeat):
        self.runs.append(repeats * runs_per_repeat)
        self.passed_s += self.runs[-1] * self.run_s
        return [self.run_s] * repeats


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


TRIAL, FULL = (autotune.TRIAL_REPEATS, 1), (autotune.REPEATS, autotune.RUNS_PER_REPEAT)


def test_each_plan_warms_up_before_it_is_timed():
    runs, bench = [], Bench([[1e-4]])
    autotune.fastest([plan("a", runs)], bench)
    assert len(runs) == 4
    assert bench.looks == [TRIAL, (autotune.TRIAL_REPEATS, autotune.RUNS_PER_REPEAT), FULL]


@pytest.mark.parametrize("run_s", [1e-6, 1e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3, 20e-3])
def test_a_look_at_a_plan_takes_about_ten_milliseconds_but_three_runs_at_least(run_s):
    bench = PlannedBench(run_s)
    autotune.fastest([plan("a")], bench)
    *_, full = bench.runs
    least_s = autotune.LEAST_RUNS * run_s
    assert full >= autotune.LEAST_RUNS
    assert full * run_s <= max(autotune.LOOK_S, least_s) * 1.001
    assert full == autotune.REPEATS * autotune.RUNS_PER_REPEAT or full * run_s > 0.6 * autotune.LOOK_S
    assert bench.passed_s <= max(autotune.LOOK_S, 2 * run_s) + max(autotune.LOOK_S, least_s)


def test_a_plan_far_slower_than_the_best_so_far_is_not_timed_again():
    """Twenty runs of a plan of 50 ms would take a second, for each of hundreds of plans."""
    ms = [[1e-3], [9e-3, autotune.HOPELESS * 1e-3], [9e-3, 1.9e-3, 0.5e-3, 0.5e-3, 0.5e-3]]
    bench = Bench(ms)
    best, timed = autotune.fastest([plan("a"), plan("slow"), plan("an outlier first")], bench)
    assert bench.looks == [TRIAL, (5, 2), TRIAL, TRIAL, (5, 1)]
    assert (best, [t.time_s for t in timed]) == (2, [1e-3, autotune.HOPELESS * 1e-3, 0.5e-3])


def test_a_plan_that_does_not_run_is_left_out():
    best, timed = autotune.fastest(
        [plan("broken", failure=RuntimeError("no")), plan("b"), plan("c")], Bench([[2.0], [1.0]])
    )
    assert best == 2
    assert [t.plan for t in timed] == ["b", "c"]


def test_when_none_runs_the_failure_is_told():
    with pytest.raises(RuntimeError, match="out of luck"):
        autotune.fastest([plan("broken", failure=RuntimeError("out of luck"))], Bench([]))


# -- on CuPy -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch):
    return install_cupy(monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_buffers_hold_random_values_for_work_on_the_stream(cupy, monkeypatch, dtype):
    """Not those of the legacy stream, which ours does not wait for."""
    monkeypatch.setattr(autotune, "_TILE_VALUES", 1000)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        bench = autotune.CupyWorkbench(stream)
        for address, buffer in zip(bench.addresses(Add(2500, dtype)), bench._buffers, strict=True):
            assert address == buffer.data.ptr
            values = buffer.get(stream)
            assert (values.min() >= 0.5, values.max() <= 1.5, np.isfinite(values).all()) == (True, True, True)
            assert len(np.unique(values)) > 100


def test_what_timing_takes_lies_in_a_pool_of_its_own_and_goes_back_to_the_device(cupy, monkeypatch):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        other = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(other.malloc):
            bench = autotune.CupyWorkbench(stream)
            bench.addresses(Add(1 << 20, "float32"))
            bench.workspace(1 << 20)
        assert other.total_bytes() == 0
        assert bench._pool.total_bytes() == 13 << 20
        bench.release()
        assert bench._pool.total_bytes() == 0
        monkeypatch.setattr(Gpu, "limit_bytes", 13 << 20)
        bench.addresses(Add(1 << 20, "float32"))  # and all of it can be had again


def test_times_are_the_devices_for_one_run(cupy):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        bench = autotune.CupyWorkbench(stream)
        runs = []
        assert bench.times_s(lambda: runs.append(1), 3, 4) == [0.00025] * 3
        assert len(runs) == 12
