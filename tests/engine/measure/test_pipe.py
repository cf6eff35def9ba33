"""The worker's end of a job."""

import os
import subprocess
import sys

import pytest

JOB = """
import atexit
from tcbench.engine.measure import pipe
atexit.register(print, "taken down")
print("shown", end=" ")
pipe.serve(len, lambda job, send: job)
"""


@pytest.mark.parametrize(
    ("listening", "printed"), [({}, "shown "), ({"NVTX_INJECTION64_PATH": "tool.so"}, "shown taken down\n")]
)
def test_a_process_ends_with_its_job_unless_a_tool_has_something_to_write(listening, printed):
    reads, writes = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(writes)],
        input=b"12345",
        pass_fds=(writes,),
        env=os.environ | listening,
        stdout=-1,
    )
    os.close(writes)
    with open(reads, "rb") as pipe:
        assert (done.returncode, done.stdout.decode(), pipe.read()) == (0, printed, b"5\n")
