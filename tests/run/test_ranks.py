"""The ranks of a trial, with stand-ins: a launcher that starts small Python programs, which end in every way that a
rank can end; and at the end MPI's own."""

import importlib.util
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import factories
import msgspec
import pytest

from tcbench.core.messages import Finished
from tcbench.core.record import Input, MeasureSettings
from tcbench.hardware import machine
from tcbench.run import launcher as launchers
from tcbench.run import ranks
from tcbench.run.launcher import Launcher
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Runner
from tcbench.run.worker_launch import Launch

STARTER = """
import os, subprocess, sys, time
ranks = [subprocess.Popen(sys.argv[2:], env={**os.environ, "RANK": str(r), "SIZE": sys.argv[1]})
         for r in range(int(sys.argv[1]))]
while all(rank.poll() is None for rank in ranks): time.sleep(0.01)
for number, rank in enumerate(ranks):
    if (rank.poll() or 0) < 0:
        print(f"the starter noticed that process rank {number} with PID {rank.pid} exited on\\nsignal {-rank.poll()}.")
        for other in ranks: other.kill()
for rank in ranks: rank.wait()
"""

MEASURED = factories.make_measurement(ranks=(factories.make_rank_part({}),))
FINISHED = Finished("ok", None, MEASURED, factories.make_environment(ranks=factories.make_ranks()))

RANK = """
import faulthandler, json, os, signal, socket, sys, time
rank, size, address = int(os.environ["RANK"]), int(os.environ["SIZE"]), sys.argv[1]
if address.startswith("unix:"):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address[5:])
else:
    from tcbench.engine.measure.rank import connect
    connection = connect(address)
def send(message): connection.sendall(json.dumps(message).encode() + b"\\n")
def come(**changes):
    who = {"rank": rank, "size": size, "host": socket.gethostname(), "pid": os.getpid(), "cores": [rank]}
    send({"type": "joined", "bound": "1 each"} | who | changes)
def join(**changes):
    come(**changes)
    job = connection.makefile("rb").readline().strip()
    faulthandler.register(signal.SIGUSR1, file=connection.fileno(), all_threads=False)
    return job
def end(status, reason):
    send({"type": "finished", "status": status, "reason": reason, "measurement": None, "environment": None})
def finish(step_s):
    message = json.loads(FINISHED)
    measured = message["measurement"]
    measured["step_times_s"] = [step_s] * 12
    measured["ranks"][0] |= {"rank": rank, "cores": [rank], "step_times_s": [step_s] * 2}
    send(message)
"""
"""A rank that imports no installed packages (-S) and none of our messages: it starts in a thirtieth of the time."""


def rank_command(body: str, address: str) -> list[str]:
    code = f"FINISHED = {msgspec.json.encode(FINISHED)!r}\n{RANK}\n{body}"
    return [sys.executable, *["-S"] * address.startswith("unix:"), "-c", code, address]


def standins(body: str) -> tuple[Launcher, Launch]:
    class _Launch(Launch):
        def rank_command(self, address: str) -> list[str]:
            return rank_command(body, address)

    return Launcher((sys.executable, "-S", "-c", STARTER, "{n}")), _Launch()


def run(body: str, *, n: int = 2, timeout_s: float = 60.0, listen=None, launcher: Launcher | None = None):
    starter, launch = standins(body)
    listen = listen or (lambda *_: None)
    runner = Runner("run-1", timeout_s, listen=listen, launch=launch, launcher=launcher or starter, grace_s=1.0)
    (record,) = runner.run([(PlannedCell(factories.make_cell(ranks=n)), 0)])
    return record


def test_the_results_of_all_ranks_become_one_record_that_of_the_slowest():
    heard = []
    record = run(
        'assert b"resnet50" in join()\n'
        'told = [{"type": "stepped", "stage": "timed", "steps": n, "step_time_s": 0.1} for n in (rank, 7)]\n'
        'connection.sendall(b"".join(json.dumps(one).encode() + b"\\n" for one in told))\n'
        "finish(0.1 + 0.1 * (rank == 1))",
        n=3,
        listen=lambda cell, trial, message: heard.append(message),
    )
    assert (record.status, record.reason) == ("ok", None)
    assert record.measurement.step_times_s == (0.2,) * 12
    parts = [(part.rank, part.cores, part.step_times_s[0]) for part in record.measurement.ranks]
    assert parts == [(0, (0,), 0.1), (1, (1,), 0.2), (2, (2,), 0.1)]
    assert record.environment.ranks.launcher.endswith(" {n}")
    assert record.environment.ranks.hosts == ("host",)
    assert [message.steps for message in heard[:-1]] == [0, 7]  # rank 0's alone, also two that come at once


def test_ranks_come_where_the_folder_for_temporary_files_has_a_long_path_and_nothing_stays_there(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert run("join()\nfinish(0.1)").status == "ok"
    monkeypatch.setattr(ranks, "_LONGEST_ADDRESS", 5)
    assert "TMPDIR" in run("join()\nfinish(0.1)").reason
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ranks.RankWorkers, "_listen", Mock(side_effect=OSError("no sockets here")))
    assert "no sockets here" in run("join()\nfinish(0.1)").reason
    assert list(folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("if rank == 1: os.kill(os.getpid(), 9)", "crashed", "was killed by signal 9 (SIGKILL)"),
        ("if rank == 1: os._exit(7)", "crashed", "ended without a result"),
        ('if rank == 1: connection.sendall(b"x\\n")', "crashed", "sent an invalid message"),
        ('if rank == 1: end("oom", "spent")', "oom", "spent"),
        ('if rank == 1: end("failed", "bad")', "failed", "bad"),
    ],
    ids=["killed", "ended", "no message", "oom", "failed"],
)
def test_the_rank_that_ends_a_trial_is_named_and_the_others_are_ended(body, status, reason):
    start = time.monotonic()
    record = run(f"join()\n{body}\ntime.sleep(600)")
    assert record.status == status
    assert record.reason.startswith("rank 1 (")
    assert record.reason.endswith(reason)
    assert time.monotonic() - start < 300


@pytest.mark.parametrize(
    ("log", "number"),
    [
        ("tasks 0-1: Terminated", signal.SIGTERM),
        ("tasks 0,1,3: User defined signal 1", signal.SIGUSR1),
        ("task 1: Segmentation fault (core dumped)", signal.SIGSEGV),
        ("task 1: Exited with exit code 9", None),
        ("tasks 0,2-11: Killed", None),
    ],
)
def test_the_signal_that_killed_a_rank_is_told_by_srun_too(log, number):
    output = f"slurmstepd-a: error: *** STEP 3.1 ON a CANCELLED ***\nsrun: error: a: {log}"
    assert ranks._signal_of(1, output) == number


def test_a_rank_that_ends_as_it_gets_its_job_is_named(monkeypatch):
    send = ranks._Connection.send

    def broken(connection, line):
        if connection.joined.rank == 1:
            raise BrokenPipeError
        send(connection, line)

    monkeypatch.setattr(ranks._Connection, "send", broken)
    record = run("if rank == 1:\n  come(host='h')\n  time.sleep(0.5)\n  os._exit(3)\njoin()\ntime.sleep(60)")
    assert record.status == "crashed"
    assert record.reason.startswith("rank 1 (h, process ")


def test_a_rank_that_the_kernel_kills_for_memory_is_out_of_memory(monkeypatch):
    kills = iter([3, 4])
    monkeypatch.setattr("tcbench.run.runner._oom_kills", lambda: next(kills))
    record = run("join()\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(60)")
    assert record.status == "oom"
    assert record.reason.startswith("out of memory: the kernel killed rank 1 (")


WAIT = "def allreduce(): time.sleep(60)\ndef compute(): time.sleep(60)\njoin()\n"

HANGS = {
    "stopped": (WAIT + "if rank == 1: os.kill(os.getpid(), 19)\nallreduce()", "did not answer"),
    "computes": (WAIT + "compute() if rank == 1 else allreduce()", "did not reach the collective"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("body", "reason"), HANGS.values(), ids=HANGS)
def test_the_rank_that_the_others_wait_for_is_named(body, reason):
    record = run(body, n=3, timeout_s=4.0)
    assert record.status == "timeout"
    assert "(--timeout): rank 1 (" in record.reason
    assert record.reason.endswith(reason)
    assert "in allreduce" in (record.log or "")


@pytest.mark.slow
def test_ranks_that_all_wait_are_not_blamed():
    record = run("def allreduce(): time.sleep(60)\njoin(); allreduce()", timeout_s=4.0)
    assert record.reason.endswith("all ranks were waiting for each other")


def test_a_launcher_of_another_mpi_is_said_to_be_one():
    record = run("join(rank=0, size=1)\ntime.sleep(60)")
    assert record.status == "crashed"
    assert "report a world size of 1, not 2" in record.reason


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'ssh: Could not resolve h: no name. And more'; exit 3", "ssh: Could not resolve h: no name"),
        ("exit 3", "it ended without a result (exit code 3)"),
        ("printf -- '-----\\nThere are no\\nslots. Ask\\n-----\\n'", "There are no slots"),
        ("printf 'Traceback (most recent call last):\\n  File\\nImportError: no mpi\\n'", "ImportError: no mpi"),
        ("printf 'Traceback (m):\\nTraceback (m):\\n  File\\n  File\\nImportError: no mpi\\n'", "ImportError: no mpi"),
    ],
    ids=["says why", "silent", "framed", "a traceback", "two at once"],
)
def test_a_launcher_that_ends_says_why_on_one_line(script, reason):
    record = run("", launcher=Launcher(("sh", "-c", script, "{n}")))
    assert (record.status, record.reason) == ("crashed", f"the launcher ended before its ranks: {reason}")


@pytest.mark.long
def test_ranks_that_do_not_come_are_counted(monkeypatch):
    monkeypatch.setattr(ranks, "_JOIN_S", 2.0)
    record = run("join() if rank == 0 else time.sleep(60)")
    assert record.status == "crashed"
    assert record.reason.startswith("1 of 2 ranks connected within 2 s")


@pytest.mark.slow
def test_over_a_network_a_rank_must_know_the_secret():
    starter, _ = standins("")
    far = Launcher(starter.words, is_local=False)
    assert run("join(); finish(0.1)", launcher=far).status == "ok"
    wrong = lambda address: rank_command("join()\ntime.sleep(60)", address[:-32] + "0" * 32)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "_JOIN_S", 4.0)
        with pytest.raises(launchers.SelectionError, match=r"0 of 2 ranks connected|ended before its ranks"):
            ranks.probe(far, 2, wrong, dict(os.environ))


def test_a_probe_asks_who_is_there_and_no_more():
    starter, launch = standins("assert join() == b''")
    assert ranks.probe(starter, 2, launch.rank_command, dict(os.environ)) == 1, "processors of each"
    with pytest.raises(launchers.SelectionError, match=r"^--ranks 2, started by `.*`: the launcher ended"):
        ranks.probe(Launcher(("false", "{n}")), 2, launch.rank_command, dict(os.environ))
    with pytest.raises(launchers.SelectionError, match="No such file"):
        ranks.probe(Launcher(("/nonexistent", "{n}")), 2, launch.rank_command, dict(os.environ))


@pytest.mark.long
def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pids = tmp_path / "pids"
    run(f"join()\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')\ntime.sleep(60)", timeout_s=3.0)
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(tmp_path.iterdir()) == [pids]


mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py (uv run --extra mpi)")


@pytest.mark.long
@mpi
def test_mpirun_starts_ranks_that_find_each_other():
    launcher = launchers.find("mpirun")
    ranks.probe(launcher, 2, Launch().rank_command, dict(os.environ))


@mpi
@pytest.mark.slow
def test_a_rank_of_mpi_that_is_killed_ends_the_trial_and_the_next_cell_runs():
    small = {"batch_size": 1, "image_size": 32, "input": Input(kind="synthetic")}
    cell = factories.make_cell(ranks=2, threads=1, measure=MeasureSettings(max_time_s=1.0, target=0.5), **small)
    killed = threading.Event()

    def kill_rank_1(cell, trial, message):
        if not killed.is_set() and getattr(message, "stage", None) == "warm-up":
            killed.set()
            for stat in Path("/proc").glob("[0-9]*/environ"):
                try:
                    environment = stat.read_bytes()
                    command = (stat.parent / "cmdline").read_bytes()
                except OSError:
                    continue
                if b"OMPI_COMM_WORLD_RANK=1\0" in environment and b"tcbench.rank" in command:
                    os.kill(int(stat.parent.name), signal.SIGKILL)

    runner = Runner("r", 300.0, listen=kill_rank_1, launcher=launchers.find("mpirun"))
    first, second = runner.run([(PlannedCell(cell), 0), (PlannedCell(cell), 1)])
    assert first.status == "crashed"
    assert first.reason.startswith("rank 1 (")
    assert first.reason.endswith("(SIGKILL)")
    assert second.status == "ok"
    assert [part.rank for part in second.measurement.ranks] == [0, 1]
    cores = [set(part.cores) for part in second.measurement.ranks]
    assert not cores[0] & cores[1]
    assert len({len(part.step_times_s) for part in second.measurement.ranks}) == 1
    # A rank that is bound to some cores is still on the machine that a cell of one rank is on.
    assert second.environment.cpus == machine.usable_cpus()
