import itertools
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.core.recording import Activity
from tcbench.tracing import threads
from tcbench.tracing.threads import ThreadSampler, input_work

MS = 1_000_000


@pytest.mark.parametrize(
    ("on_cpu_ms", "spans"),
    [
        ((3, 4, 4), [(1, 2)]),  # what it did since the last sample lies right before this one
        ((0, 2, 4, 6, 8), [(0, 8)]),  # pieces that touch are one
        ((0, 1, 1, 6), [(0, 6)]),  # what the kernel adds up late is neither lost nor counted twice
        ((5,), []),  # what came before the first sample is not shown
    ],
)
def test_a_thread_works_where_its_time_on_a_processor_grew(on_cpu_ms, spans):
    samples = [(2 * n * MS, {7: total * MS}) for n, total in enumerate(on_cpu_ms)]
    expected = tuple(Activity("input", "[DALI] TP0", 0, 0, a * MS, b * MS) for a, b in spans)
    assert input_work(samples, {7: "[DALI] TP0"}) == expected


@given(st.lists(st.tuples(st.integers(1, 5 * MS), st.floats(0, 1)), min_size=1, max_size=60))
def test_spans_of_a_thread_never_overlap_and_add_up_to_its_time_on_a_processor(pieces):
    now = total = 0
    samples = [(now, {1: total})]
    for wait_ns, share in pieces:
        now, total = now + wait_ns, total + int(wait_ns * share)
        samples.append((now, {1: total}))
    work = input_work(samples, {1: "x"})
    assert sum(w.end_ns - w.begin_ns for w in work) == total
    assert all(a.end_ns < b.begin_ns for a, b in itertools.pairwise(work))
    assert all(0 <= w.begin_ns < w.end_ns <= now for w in work)


BUSY = """
import ctypes, threading, time
def work():
    ctypes.CDLL(None).prctl(15, b"[DALI] stand-in")
    time.sleep(0.3)
    begin = time.thread_time_ns()
    while (spent_ns := time.thread_time_ns() - begin) < 100_000_000: pass
    print(spent_ns, flush=True)  # on a busy machine more than asked for
    time.sleep(5)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1); print("up", flush=True); time.sleep(5)
"""


def test_a_thread_of_another_process_is_seen_working_by_its_name():
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        with ThreadSampler(process.pid) as sampler:
            spent_ns = int(process.stdout.readline())
            time.sleep(0.1)
        work = sampler.work
    finally:
        process.kill()
        process.communicate()
    assert {w.name for w in work} == {"[DALI] stand-in"}
    assert sum(w.end_ns - w.begin_ns for w in work) == pytest.approx(spent_ns, abs=10 * MS)


def test_threads_without_such_names_and_processes_that_are_gone_have_no_work():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (os.getpid(), gone.pid):
        with ThreadSampler(pid) as sampler:
            time.sleep(0.01)
        assert sampler.work == ()
    assert threads.INTERVAL_S <= 0.002
