"""Processes that are started anew, for work in parallel."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tcbench.core import spawn

KILLED = """
import os, signal
from tcbench.core import spawn
pool = spawn.pool(1)
print(pool.submit(os.getpid).result(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_of_a_pool_end_when_the_process_that_made_them_is_killed():
    try:
        # Returns when no process holds its output open any more.
        done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, timeout=120)
    except subprocess.TimeoutExpired as error:
        os.kill(int(error.stdout), signal.SIGKILL)
        pytest.fail("the pool's process is still there")
    assert done.returncode == -signal.SIGKILL and int(done.stdout)


def test_processes_have_the_environment_that_they_are_given():
    answers = spawn.spread(["CUDA_VISIBLE_DEVICES"], os.getenv, 1, {"CUDA_VISIBLE_DEVICES": ""})
    assert [*answers] == [("CUDA_VISIBLE_DEVICES", "")]


def _slow(work):
    time.sleep(work)
    return work


def test_processes_end_when_their_time_is_over(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(spawn, "time", SimpleNamespace(monotonic=lambda: now_s))
    before = multiprocessing.active_children()
    answers = spawn.spread([0.0, 600.0], _slow, 2, limit_s=4.0)
    assert next(answers) == (0.0, 0.0)
    now_s = 5.0
    assert [*answers] == []
    assert multiprocessing.active_children() == before
