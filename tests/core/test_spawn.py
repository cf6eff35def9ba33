"""Processes that are started anew, for work in parallel."""

import os
import signal
import subprocess
import sys

import pytest

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
