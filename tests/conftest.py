"""Runs before any test module: two workers with two BLAS threads each would wait for one another on two cores."""

import ctypes
import fcntl
import functools
import gc
import importlib
import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import typer

# Commands are printed as they were started, and tests expect them without `uv run`.
os.environ.pop("UV_RUN_RECURSION_DEPTH", None)

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A machine that is busy with other work is no fault of what a test draws inputs for.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")

# Typer makes the commands anew from their functions' signatures whenever the application is called, which took most of
# the time of the tests that call it in their own process.
typer.main.get_command = functools.cache(typer.main.get_command)

# Hundreds of tests start Python anew, and each of xdist's workers imports all test modules. Where Python may not write
# bytecode, as on many machines, that takes 18 s of a processor a worker in place of 8.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What tests keep is no user's. All of xdist's workers inherit it from the process that starts them.
if "TCBENCH_CACHE" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="tcbench-tests-cache-")
    os.environ["TCBENCH_CACHE"] = _cache.name

# A shell that starts the suite in the background has it ignore interrupts, nohup has it ignore hangups, and so would
# every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options that report skipped tests: with everything installed, no test may be skipped silently."""
    parser.addoption("--may-skip", metavar="REGEX", help="Fail what is skipped, but for these reasons.")
    parser.addoption("--skipped-to", metavar="FILE", help="Write the ids of what was skipped; pytest @FILE runs them.")


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption("skipped_to")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SkippedTo(Path(file)))


def pytest_collection_finish() -> None:
    """Ten thousand tests and their modules stay to the end: no garbage collection has to look through them. What is
    measured in a test's own process is frozen, too, and thaws all."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    if _thawed:
        gc.freeze()
        _thawed.clear()


_thawed: list[None] = []  # to count what is frozen takes milliseconds
_unfreeze = gc.unfreeze
gc.unfreeze = lambda: _thawed.append(_unfreeze())


class _SkippedTo:
    """Writes what is skipped, tests and whole modules, from all of xdist's workers."""

    def __init__(self, file: Path) -> None:
        self._ids: set[str] = set()
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._ids.add(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport

    def pytest_sessionfinish(self) -> None:
        self._file.write_text("".join(f"{id_}\n" for id_ in sorted(self._ids)), "utf-8")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    return _no_other_skip((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    return _no_other_skip((yield), collector.config)


def _no_other_skip(report: Any, config: pytest.Config) -> Any:
    """The report, failed where it was skipped for a reason that `--may-skip` does not name."""
    allowed = config.getoption("may_skip")
    if allowed is not None and report.skipped and not hasattr(report, "wasxfail"):
        _, _, reason = report.longrepr
        if not re.search(allowed, reason):
            report.outcome, report.longrepr = "failed", f"may not be skipped here: {reason}"
    return report


def pytest_runtest_teardown() -> None:
    """Give back what closed sessions leave: cycles, which Python collects once a quarter of all objects is new, and
    what malloc keeps of what was freed. A worker of the suite grew to 6 GB."""
    if resident_bytes() > _resident[0] + 500 * 2**20:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _resident[0] = resident_bytes()


_resident = [0]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture(scope="session")
def stats() -> Any:
    """SciPy's statistics, which take a second and more to import: each worker would, to collect tests."""
    return importlib.import_module("scipy.stats")


@pytest.fixture(autouse=True)
def one_nsight_systems_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """A user's recordings share a daemon, which ends with the recording that started it."""
    if request.node.get_closest_marker("nsys") is None:
        yield
        return
    with (Path(tempfile.gettempdir()) / f"tcbench-tests-nsys-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
