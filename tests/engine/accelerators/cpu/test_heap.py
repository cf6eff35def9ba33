import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import sys

import numpy as np

from tcbench.engine.accelerators.cpu.heap import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def step():
    arrays = [np.ones(n << 20, np.uint8) for n in (24, 24, 24, 24)]


step()
before = faults()
step()
print(faults() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_memory_that_a_step_frees_is_the_next_steps_without_a_page_fault() -> None:
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("kept") < 20
    assert faults("default") > 20
