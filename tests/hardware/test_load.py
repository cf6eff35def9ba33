import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from tcbench.core.record import HostLoad
from tcbench.hardware import load
from tcbench.hardware.load import Counts, between


def test_the_difference_of_two_counts():
    before = Counts(at_s=10.0, processors=2, busy_s=100.0, stolen_s=5.0, own_s=1.0, waited_s=0.5)
    after = Counts(at_s=14.0, processors=2, busy_s=106.0, stolen_s=5.5, own_s=5.0, waited_s=2.0)
    load_between = between(before, after)
    assert load_between == HostLoad(elapsed_s=4.0, processors=2, own_s=4.0, waited_s=1.5, others_s=2.0, stolen_s=0.5)
    assert load_between.lost == pytest.approx((1.5 + 0.5) / (4.0 + 1.5 + 0.5))
    assert load_between.step_waited_s is msgspec.UNSET
    assert between(None, after) is None
    assert between(after, after) is None


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel counts no waits")
def test_the_main_thread_waits_for_a_processor_and_not_while_it_sleeps():
    before_mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(before_mask)])
    try:
        with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as other:
            before = load.counts(os.getpid())
            time.sleep(0.2)
            slept = load.counts(os.getpid())
            while time.monotonic() < slept.at_s + 0.4:
                pass
            after = load.counts(os.getpid())
            other.kill()
    finally:
        os.sched_setaffinity(0, before_mask)
    waited_s = between(slept, after).step_waited_s
    assert 0.05 < waited_s < after.at_s - slept.at_s
    both = load.sum_loads([between(before, slept), between(slept, after)])
    assert waited_s <= both.step_waited_s < waited_s + 0.15
    unknown = msgspec.structs.replace(both, step_waited_s=msgspec.UNSET)
    assert load.sum_loads([unknown, both]).step_waited_s is msgspec.UNSET


def test_waiting_for_each_other_is_not_lost():
    alone = HostLoad(elapsed_s=4.0, processors=2, own_s=8.0, waited_s=3.0, others_s=0.0, stolen_s=0.0)
    assert alone.lost == 0.0
    idle = HostLoad(elapsed_s=4.0, processors=2, own_s=0.0, waited_s=0.0, others_s=8.0, stolen_s=0.0)
    assert idle.lost == 0.0
    sleeps = HostLoad(elapsed_s=4.0, processors=2, own_s=0.001, waited_s=0.1, others_s=8.0, stolen_s=0.0)
    assert sleeps.lost == pytest.approx(0.1 / 4.0), "a step that sleeps waits for others in 2.5% of its time, not 99%"


def test_what_ended_meanwhile_counts_where_it_was_waited_for():
    """Else what a worker computed would be others' work as soon as it has ended."""
    spins = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
    with subprocess.Popen(["sh", "-c", f"read go; sh -c '{spins}'; echo; read end"], stdin=-1, stdout=-1) as process:
        before = load.counts(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.read(1)
        load_between = between(before, load.counts(process.pid))
        process.communicate(b"\n")
    assert load_between.own_s > 0


def test_a_trial_that_shares_its_processor_has_lost_time():
    """Two busy processes on one processor: each waits about half of the time."""
    before_mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(before_mask)])
    try:
        both = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2)]
        time.sleep(0.1)
        before = load.counts(both[0].pid)
        time.sleep(0.4)
        load_between = between(before, load.counts(both[0].pid))
        for process in both:
            process.kill()
            process.wait()
    finally:
        os.sched_setaffinity(0, before_mask)
    assert load_between.processors == 1
    assert 0.2 < load_between.lost < 0.95


def test_what_a_quota_withholds_is_lost_and_no_more_than_the_trial_did_not_compute():
    facts = {"elapsed_s": 4.0, "processors": 2, "waited_s": 0.5, "others_s": 0.1, "stolen_s": 0.0}
    slowed = HostLoad(own_s=1.2, throttled_s=2.8, **facts)
    assert slowed.throttled
    assert slowed.lost == pytest.approx((0.1 + 2.8) / (1.2 + 0.1 + 2.8))
    of_the_whole_group = HostLoad(own_s=1.2, throttled_s=100.0, **facts)
    assert of_the_whole_group.lost == pytest.approx((8 - 1.2) / 8)
    assert not HostLoad(own_s=1.2, throttled_s=0.05, **facts).throttled


def test_a_load_of_which_some_processors_are_missing_is_unknown(tmp_path, monkeypatch):
    (tmp_path / "stat").write_text("cpu  1 0 0 0 0 0 0 0\ncpu0 1 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(load, "_PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert load.own_counts() is not None
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert load.own_counts() is None


@pytest.mark.parametrize("text", ["", "?", "0.00 0.00 0.00 0/777 9", "-1 0 0 -5/9 1", "\n"])
def test_a_load_that_no_kernel_tells_never_makes_work_faster_than_alone(tmp_path, monkeypatch, text):
    (tmp_path / "loadavg").write_text(text)
    monkeypatch.setattr(load, "_PROC", tmp_path)
    for average in (-3.0, 0.0):
        monkeypatch.setattr(os, "getloadavg", lambda average=average: (average, 0.0, 0.0))
        assert load.slowdown() == 1

    def unknown() -> tuple[float, float, float]:
        raise OSError("Load averages are unobtainable")

    monkeypatch.setattr(os, "getloadavg", unknown)
    assert load.slowdown() == 1


@pytest.mark.parametrize(
    ("running", "load_of_others"), [("1/88", 0.0), ("3/88", 2.0), ("9/88", 4.0), ("", 4.0), ("0/88", 4.0)]
)
def test_what_was_busy_over_the_last_minute_and_has_ended_slows_nothing(tmp_path, monkeypatch, running, load_of_others):
    (tmp_path / "loadavg").write_text(f"4.00 2.10 1.87 {running} 6277\n")
    monkeypatch.setattr(load, "_PROC", tmp_path)
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0, 2.1, 1.87))
    assert load.slowdown() == 1 + load_of_others / len(os.sched_getaffinity(0))


def test_what_linux_does_not_tell_is_no_load(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "_PROC", tmp_path)
    assert load.counts(1) is None


def test_a_process_that_has_ended_has_no_load():
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert load.counts(process.pid) is None, "nobody has waited for it"
    process.wait()
    assert load.counts(process.pid) is None


def test_children_that_have_ended_waited_for_the_same_share_of_the_time_as_they_computed():
    """Linux says how long a thread waited only while it lives: a step in a child process seemed to lose nothing."""
    before = Counts(at_s=0.0, processors=2, busy_s=0.0, stolen_s=0.0, own_s=0.0, waited_s=0.0)
    after = Counts(at_s=4.0, processors=2, busy_s=6.0, stolen_s=0.0, own_s=2.0, waited_s=0.1, ended_s=1.5)
    load_between = between(before, after)
    assert load_between.waited_s == pytest.approx(0.1 + 0.75 * 2.0)
    assert load_between.lost == pytest.approx(1.6 / 4.0)
    assert between(before, after, outside_s=1.0).elapsed_s == 3.0
