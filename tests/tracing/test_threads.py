from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.tracing import threads
from tcbench.tracing.threads import ThreadSampler, work_of

MS = 1_000_000


def test_what_a_thread_did_since_the_last_sample_lies_right_before_this_one():
    samples = [(0, {7: 100}), (2 * MS, {7: 100 + MS}), (4 * MS, {7: 100 + MS})]
    (work,) = work_of(samples, {7: "[DALI] TP0"})
    assert (work.name, work.row, work.begin_ns, work.end_ns) == ("[DALI] TP0", 0, MS, 2 * MS)


def test_pieces_that_touch_are_one():
    samples = [(n * 2 * MS, {7: n * 2 * MS}) for n in range(5)]
    (work,) = work_of(samples, {7: "x"})
    assert (work.begin_ns, work.end_ns) == (0, 8 * MS)


def test_time_that_the_kernel_adds_up_late_is_neither_lost_nor_counted_twice():
    samples = [(0, {7: 0}), (2 * MS, {7: MS}), (4 * MS, {7: MS}), (6 * MS, {7: 6 * MS})]
    (work,) = work_of(samples, {7: "x"})
    assert (work.begin_ns, work.end_ns) == (0, 6 * MS)


def test_what_a_thread_did_before_the_first_sample_is_not_shown():
    assert work_of([(0, {7: 5 * MS})], {7: "x"}) == ()


@given(st.lists(st.tuples(st.integers(1, 5 * MS), st.floats(0, 1)), min_size=1, max_size=60))
def test_spans_of_a_thread_never_overlap_and_add_up_to_its_time_on_a_processor(pieces):
    now = total = 0
    samples = [(now, {1: total})]
    for wait_ns, share in pieces:
        now, total = now + wait_ns, total + int(wait_ns * share)
        samples.append((now, {1: total}))
    work = work_of(samples, {1: "x"})
    assert sum(w.end_ns - w.begin_ns for w in work) == total
    assert all(a.end_ns < b.begin_ns for a, b in itertools.pairwise(work))
    assert all(0 <= w.begin_ns < w.end_ns <= now for w in work)


BUSY = """
import ctypes, threading, time
def work():
    ctypes.CDLL(None).prctl(15, b"[DALI] stand-in")
    time.sleep(0.3)
    end = time.thread_time() + 0.1
    while time.thread_time() < end: pass
    time.sleep(5)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1); print("up", flush=True); time.sleep(5)
"""


def test_a_thread_of_another_process_is_seen_working_by_its_name():
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        with ThreadSampler(process.pid) as sampler:
            time.sleep(1.5)
        work = sampler.work
    finally:
        process.kill()
        process.communicate()
    assert sampler.samples > 100
    assert {w.name for w in work} == {"[DALI] stand-in"}
    assert sum(w.end_ns - w.begin_ns for w in work) == pytest.approx(0.1e9, rel=0.1)


def test_threads_without_such_names_and_processes_that_are_gone_have_no_work():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (os.getpid(), gone.pid):
        with ThreadSampler(pid, names=("no such thread",)) as sampler:
            time.sleep(0.01)
        assert sampler.work == ()
    assert threads.INTERVAL_S <= 0.002
