"""The runner with stand-in workers: small Python programs that end in every way a process can end."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import factories
import pytest
from standin_nvml import pynvml

from tcbench.core.messages import Stepped
from tcbench.core.record import GpuSample, GpuSamples, GpuState
from tcbench.run import runner as module
from tcbench.run.numerics_runner import worker_command as numerics_command
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Launch, Runner, python_module, watch_device, worker_environment

__all__ = ["pynvml"]

TESTS = str(Path(factories.__file__).parent)

PRELUDE = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
import factories, msgspec
from tcbench.core.messages import *
cell = sys.stdin.read()
pipe = int(sys.argv[1])
def encode(message): return msgspec.json.encode(message) + b"\\n"
def send(message): os.write(pipe, encode(message))
ok = Finished("ok", None, factories.make_measurement(), factories.make_environment())
"""


def run(body: str, *, timeout_s: float = 60.0, listen=None, cells=1):
    code = PRELUDE.format(tests=TESTS) + body
    listen = listen or (lambda *_: None)
    runner = Runner("run-1", timeout_s, lambda pipe: [sys.executable, "-c", code, str(pipe)], listen)
    return list(runner.run([(PlannedCell(factories.make_cell(batch_size=n + 1)), 0) for n in range(cells)]))


def test_a_result_becomes_a_record():
    heard = []
    (one,) = run('send(Stepped("timed", 6, 0.1)); send(ok)', listen=lambda *call: heard.append(call))
    assert (one.status, one.reason, one.run_id, one.trial) == ("ok", None, "run-1", 0)
    assert one.measurement == factories.make_measurement()
    assert one.environment == factories.make_environment()
    assert one.duration_s > 0
    assert one.log is None
    assert heard[0][2] == Stepped("timed", 6, 0.1)


def test_a_process_of_ours_takes_no_module_from_the_current_directory(tmp_path):
    (tmp_path / "numpy.py").write_text("print('the folder')", "utf-8")
    shown = subprocess.run(python_module(sys.executable, "numpy"), cwd=tmp_path, capture_output=True, text=True)
    assert "the folder" not in shown.stdout
    assert "numpy" in shown.stderr  # a package, which cannot be run
    for command in (Launch().command(7), numerics_command(7)):
        assert command[:3] == [sys.executable, "-P", "-m"]
        assert command[4:] == ["7"]


@pytest.mark.parametrize(
    "last",
    [
        'b\'{"type":"finished","status":"ok","reason":null,"measurement":null,"environment":null}\\n\'',
        'b\'{"type":"finished","status":"failed","reason":null,"measurement":null,"environment":null}\\n\'',
        'encode(ok).replace(b\'"step_times_s":[\', b\'"step_times_s":[],"old":[\')',
        'encode(Stepped("timed", 6, 0.0))',
        'encode(Stepped("timed", -1, 0.1))',
    ],
)
def test_a_word_that_cannot_be_true_is_a_crash_and_the_run_goes_on(last):
    records = run(f"os.write(pipe, {last} if b'batch_size\":1,' in cell.encode() else encode(ok))", cells=2)
    assert [one.status for one in records] == ["crashed", "ok"]
    assert records[0].reason == "the worker sent something that is no message"


def test_whoever_listens_cannot_end_a_run():
    records = run('send(Stepped("timed", 6, 0.1)); send(ok)', listen=lambda *_: 1 / 0, cells=2)
    assert [one.status for one in records] == ["ok", "ok"]


def test_the_worker_gets_the_cell_and_its_threads():
    body = """
import msgspec
from tcbench.core.record import Cell
assert msgspec.json.decode(cell, type=Cell) == factories.make_cell(batch_size=1)
assert os.environ["OPENBLAS_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"] == "2"
send(ok)
"""
    assert run(body)[0].status == "ok"


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ('send(Finished("failed", "ValueError: no", None, None))', "failed", "ValueError: no"),
        ('send(Finished("oom", "out of memory: x", None, None))', "oom", "out of memory: x"),
        ("raise RuntimeError('boom')", "crashed", "the worker ended without a result (exit code 1)"),
        ("sys.exit(0)", "crashed", "the worker ended without a result (exit code 0)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crashed", "the worker was killed by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "the worker was killed by signal 11 (SIGSEGV)"),
        ("os.close(pipe); time.sleep(600)", "crashed", "the worker closed its pipe without a result"),
        ("os.write(pipe, b'junk\\n'); time.sleep(600)", "crashed", "the worker sent something that is no message"),
    ],
)
def test_every_end_of_a_worker_is_a_record(body, status, reason):
    (one,) = run(body)
    assert (one.status, one.reason) == (status, reason)
    assert one.measurement is None


def test_a_worker_that_dies_before_it_reads_its_cell_is_a_record():
    runner = Runner("r", 60.0, lambda pipe: [sys.executable, "-c", "import os; os._exit(7)"])
    (one,) = runner.run([(PlannedCell(factories.make_cell()), 0)])
    assert one.reason == "the worker ended without a result (exit code 7)"


def test_a_worker_that_prints_without_end_fills_nothing_and_its_last_words_are_kept():
    """A limit on files stands for a disk."""
    (one,) = run(
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))\n"
        "for _ in range(2000): print('x' * 9000)\nos._exit(print('the end', flush=True) or 7)"
    )
    assert one.reason == "the worker ended without a result (exit code 7)"
    assert one.log.endswith("xxx\nthe end") and len(one.log) <= 4096


def test_a_process_that_escapes_and_holds_the_output_does_not_hold_up_the_trial(monkeypatch):
    monkeypatch.setattr("tcbench.core.process._LAST_WORDS_S", 0.1)
    held: list[subprocess.Popen[bytes]] = []

    def listen(cell, trial, message):
        with open(f"/proc/{message.pid}/fd/1", "wb") as output:
            held.append(subprocess.Popen(["sleep", "600"], stdout=output))
        os.kill(message.pid, signal.SIGUSR1)

    waits = "signal.signal(signal.SIGUSR1, lambda *_: os._exit(7)); print('here', flush=True)"
    (one,) = run(f"{waits}; send(Building('x', os.getpid())); time.sleep(60)", listen=listen)
    held[0].kill()
    held[0].wait()
    assert one.log == "here"


@pytest.mark.slow
def test_a_hang_ends_at_the_timeout_with_everything_it_started(tmp_path):
    start = time.monotonic()
    body = f"""
import subprocess
child = subprocess.Popen(["sleep", "600"])
open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(600)
"""
    (one,) = run(body, timeout_s=3.0)
    assert (one.status, one.reason) == ("timeout", "no result after 3 s (--timeout)")
    assert time.monotonic() - start < 30
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        assert not _running(pid)


def _running(pid: int) -> bool:
    for _ in range(50):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                state = stat.read().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.1)
    return True


def test_a_skipped_cell_is_a_record_without_a_process():
    runner = Runner("r", 1.0, lambda pipe: ["/nonexistent"])
    (one,) = runner.run([(PlannedCell(factories.make_cell(), "needs cv2"), 0)])
    assert (one.status, one.reason) == ("skipped", "needs cv2")


def test_an_interrupt_ends_the_worker_and_passes_through(tmp_path):
    pid_file = tmp_path / "pid"

    def interrupt() -> None:
        while not pid_file.exists() or not pid_file.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    thread.join()
    assert not _running(int(pid_file.read_text()))


CHILDREN = """
import subprocess
pids = [subprocess.Popen(["sleep", "600"], start_new_session=own, pass_fds=[pipe]).pid for own in (False, True)]
open({pids!r}, "w").write(" ".join(map(str, [*pids, os.getpid()])))
"""
"""A worker that starts a child, and one in a session of its own; both hold the pipe."""


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os._exit(1)", "the worker ended without a result (exit code 1)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the worker was killed by signal 11 (SIGSEGV)"),
        ("send(ok)", None),
    ],
)
def test_a_worker_that_ends_takes_its_children_along_at_once(tmp_path, end, reason):
    """Though a child of its own lives and holds the pipe, it is not waited for until the timeout."""
    start = time.monotonic()
    (one,) = run(CHILDREN.format(pids=str(tmp_path / "pids")) + end)
    assert (one.status, one.reason) == ("crashed" if reason else "ok", reason)
    assert time.monotonic() - start < 30
    assert not any(map(_running, map(int, (tmp_path / "pids").read_text().split())))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_worker_and_its_children_die_with_their_runner(tmp_path, how):
    """However the runner ends, nothing is left behind to disturb the next run, not even what has a session of its
    own."""
    pids = tmp_path / "pids"
    worker = PRELUDE.format(tests=TESTS) + CHILDREN.format(pids=str(pids)) + "time.sleep(600)"
    code = f"""
import sys
sys.path.insert(0, {TESTS!r})
import factories
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Runner
command = lambda pipe: [sys.executable, "-c", {worker!r}, str(pipe)]
list(Runner("r", 600.0, command).run([(PlannedCell(factories.make_cell()), 0)]))
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    while not pids.exists() or len(pids.read_text().split()) < 3:
        assert parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(how)
    parent.wait()
    assert not any(map(_running, map(int, pids.read_text().split())))


class Watched:
    """A stand-in for a GPU that is watched: when it began and ended, and the timed pass that it was given."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.began: list[tuple[str, float]] = []
        self.timed: list[tuple[float | None, float | None]] = []

    def __call__(self, cell, start):
        self.began.append((cell.device, start))
        self.now.append("watching")
        return self

    def stop(self, timed_from_s, timed_to_s):
        self.now.append("stopped")
        self.timed.append((timed_from_s, timed_to_s))
        samples = (GpuSample(0.0, power_w=80.0), GpuSample(1.0, power_w=600.0))
        return GpuSamples(state=GpuState(), samples=samples, timed_from_s=timed_from_s, timed_to_s=timed_to_s)


def run_watched(body: str, watched: Watched, **options):
    code = PRELUDE.format(tests=TESTS) + body
    command = lambda pipe: [sys.executable, "-c", code, str(pipe)]  # noqa: E731
    runner = Runner("run-1", 60.0, command, watch=watched, **options)
    (one,) = runner.run([(PlannedCell(factories.make_cell(device="cuda:1")), 0)])
    return one


def test_a_gpu_is_watched_while_its_trial_runs_and_gets_the_times_of_the_timed_pass():
    watched = Watched()
    body = """
send(Stepped("warm-up", 3, 0.1)); time.sleep(0.2)
send(Stepped("timed", 0, 0.1)); time.sleep(0.8)
send(Stepped("timed", 6, 0.1)); time.sleep(0.8)
send(Stepped("timed", 12, 0.1)); time.sleep(0.8)
send(Stepped("profiled", 5, 0.1)); send(ok)
"""
    before = time.monotonic()
    one = run_watched(body, watched, listen=lambda *_: watched.now.append("step"))
    assert watched.now[0] == "watching"
    assert watched.now[-1] == "stopped"
    assert watched.now.count("stopped") == 1
    ((device, start),) = watched.began
    assert device == "cuda:1"
    assert before <= start <= before + one.duration_s
    ((from_s, to_s),) = watched.timed
    assert 0.2 <= from_s < to_s <= one.duration_s - 0.2
    assert to_s - from_s >= 0.9
    assert one.gpu.samples[1].power_w == 600.0
    assert (one.gpu.timed_from_s, one.gpu.timed_to_s) == (from_s, to_s)


def test_a_gpu_is_watched_until_its_worker_dies():
    watched = Watched()
    one = run_watched("os.kill(os.getpid(), 9)", watched)
    assert (one.status, watched.now, watched.timed) == ("crashed", ["watching", "stopped"], [(None, None)])
    assert one.gpu is not None


def test_an_interrupt_ends_the_watching():
    watched = Watched()

    def interrupt(*call):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched('send(Stepped("timed", 6, 0.1)); time.sleep(600)', watched, listen=interrupt)
    assert watched.now == ["watching", "stopped"]


def test_a_gpu_that_cannot_be_asked_leaves_nothing():
    one = run_watched("send(ok)", lambda cell, start: None)
    assert (one.status, one.gpu) == ("ok", None)


def test_on_the_cpu_nothing_of_cuda_is_imported():
    code = (
        f"import sys; sys.path.insert(0, {TESTS!r}); import factories; from tcbench.run import runner\n"
        "assert runner.watch_device(factories.make_cell(), 0.0) is None\n"
        "unwanted = ('tcbench.engine.accelerators.cuda.nvml', 'pynvml', 'cupy')\n"
        "assert not any(name.startswith(unwanted) for name in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == 0


def test_a_real_watch_samples_through_nvml(pynvml):
    watch = watch_device(factories.make_cell(device="cuda:0"), time.monotonic())
    assert watch.stop(None, None).samples[0].sm_clock_mhz == 1755


def test_a_launch_says_which_python_runs_where_and_with_what(tmp_path):
    python = tmp_path / "python"
    code = PRELUDE.format(tests=TESTS) + (
        'send(ok if (os.getcwd(), os.environ["TCBENCH_CACHE"]) == ("/", "there") else Finished("failed", "no", None, '
        "None))"
    )
    (tmp_path / "code.py").write_text(code)
    python.write_text(
        f'#!/bin/sh\n[ "$2 $3" = "-m tcbench.worker" ] && exec {sys.executable} {tmp_path}/code.py "$4"\n'
    )
    python.chmod(0o755)
    launch = Launch(str(python), Path("/"), {"TCBENCH_CACHE": "there"})
    (one,) = Runner("r", 60.0, launch=launch).run([(PlannedCell(factories.make_cell()), 0)])
    assert (one.status, one.reason) == ("ok", None)


def test_a_python_that_is_not_there_is_a_record(tmp_path):
    launch = Launch(str(tmp_path / "python"))
    (one,) = Runner("r", 60.0, launch=launch).run([(PlannedCell(factories.make_cell()), 0)])
    assert one.status == "crashed"
    assert one.reason.startswith("the worker could not be started: [Errno 2] No such file or directory")


def test_the_load_of_the_host_is_that_of_the_timed_pass():
    spin = "spent = time.process_time()\nwhile time.process_time() < spent + 0.8: pass"
    stays = "time.sleep(1)"  # until it was looked at, which takes a while on a busy machine
    (one,) = run(f'send(Stepped("timed", 0, 0.1))\n{spin}\nsend(Stepped("profiled", 0, 0.1)); {stays}; send(ok)')
    assert one.host is not None
    assert 0.5 < one.host.elapsed_s < 30
    assert 0.1 < one.host.own_s <= one.host.elapsed_s * 1.2  # it had one thread
    (none,) = run("send(ok)")
    assert none.host is None


@pytest.mark.parametrize(
    ("variables", "writable", "there", "kept"),
    [
        ({}, True, False, True),
        ({}, False, True, True),  # compiled when it was installed
        ({}, False, False, False),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, True, True, False),
        ({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/mine"}, True, True, True),
    ],
)
def test_where_python_may_keep_no_bytecode_a_worker_keeps_it_in_the_cache(
    tmp_path, monkeypatch, variables, writable, there, kept
):
    monkeypatch.setattr(module.tcbench, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(module.os, "access", lambda path, mode: writable)
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "cache"))
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if there:
        (tmp_path / "__pycache__").mkdir()
    environment = worker_environment(factories.make_cell())
    prefix = variables.get("PYTHONPYCACHEPREFIX") if kept else str(tmp_path / "cache" / "bytecode")
    assert environment.get("PYTHONPYCACHEPREFIX") == prefix
    assert kept or not environment["PYTHONDONTWRITEBYTECODE"]
