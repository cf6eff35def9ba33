"""Runs before any test module: two workers with two BLAS threads each would wait for one another on two cores."""

import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of tests start Python anew: none of them should compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that starts the suite in the background has it ignore interrupts, nohup has it ignore hangups, and so would
# every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def one_nsight_systems_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Its recordings share a daemon, which goes with the one that started it."""
    if request.node.get_closest_marker("nsys") is None:
        yield
        return
    with (Path(tempfile.gettempdir()) / "tcbench-tests-nsys.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
