"""Commands that are kept: all that they started ends when they do, when their process is told to, or when it dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import alive, pids

from tcbench.core import process
from tcbench.core.process import Ended, Fault

STARTS = 'sleep 600 & echo $! >> pids; setsid sleep 600 & echo $! >> pids; echo $$ >> pids; sleep "$@"'
"""A shell that starts a child, and one in a session of its own."""


def run(command: str, folder: Path) -> int:
    with (folder / "log").open("wb") as output:
        return process.run(["/bin/sh", "-c", command], folder=folder, environment=os.environ, output=output)


def test_a_command_ends_with_its_own_code_and_without_its_children(tmp_path):
    assert run(STARTS.replace('sleep "$@"', "exit 7"), tmp_path) == 7
    assert not any(map(alive, pids(tmp_path / "pids", 3)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGPIPE])
def test_a_command_that_a_signal_ends_gives_that_signal(tmp_path, number):
    assert run(f"kill -{number:d} $$", tmp_path) == -number


@pytest.mark.parametrize("refusal", [None, PermissionError("refused by a sandbox")])
def test_a_job_reaches_its_worker_where_no_file_in_memory_can_be_made(monkeypatch, refusal):
    def refuse(*_: object) -> int:
        raise refusal

    monkeypatch.delattr(os, "memfd_create") if refusal is None else monkeypatch.setattr(os, "memfd_create", refuse)
    copies = "import os, sys; os.write(int(sys.argv[1]), sys.stdin.buffer.read())"
    worker = process.Worker(
        lambda pipe: [sys.executable, "-c", copies, str(pipe)],
        b"job\n",
        bytes.decode,
        timeout_s=60,
        environment=os.environ,
    )
    assert next(worker.receive()) == "job"
    worker.end()


def test_a_command_is_kept_where_there_is_no_proc(tmp_path):
    hides = """
import os, runpy, sys
def hidden(path): raise FileNotFoundError(2, "No such file or directory", path)
os.listdir = hidden
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    command = [sys.executable, "-I", "-S", "-c", hides, process._KEEPER, str(os.getpid()), "sh", "-c"]
    assert subprocess.run([*command, "exit 7"], check=False, timeout=60).returncode == 7
    with subprocess.Popen([*command, "echo $$; exec sleep 600"], stdout=subprocess.PIPE) as keeper:
        child = int(keeper.stdout.readline())
        keeper.terminate()
        assert keeper.wait(60) == -signal.SIGKILL
    assert not alive(child)


def test_no_such_command_is_exit_code_127_as_in_a_shell(tmp_path):
    with (tmp_path / "log").open("wb") as output:
        assert process.run(["./nothing"], folder=tmp_path, environment=os.environ, output=output) == 127
    assert "No such file or directory: './nothing'" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_command_and_its_children_die_with_the_process_that_runs_it(tmp_path, number):
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom tcbench.core import process\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"process.run(['/bin/sh', '-c', {STARTS!r}, 'sh', '600'], folder=Path({str(tmp_path)!r}), "
        "environment=os.environ, output=open(os.devnull, 'wb'))"
    )
    runs = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    started = pids(tmp_path / "pids", 3)
    runs.send_signal(number)
    runs.wait()
    assert not any(map(alive, started))


def test_a_question_is_answered_with_code_output_and_errors(tmp_path):
    shell = "pwd; echo $X; cat; echo 'half\\rlast line' >&2; exit 3"
    answer = process.ask(["/bin/sh", "-c", shell], folder=tmp_path, environment={"X": "1"})
    assert (answer.code, answer.stdout, answer.last_line) == (3, f"{tmp_path}\n1\n", "last line")
    assert process.ask(["/bin/sh", "-c", "echo out"]).last_line == "out"
    assert process.ask(["/bin/false"]).last_line == "exit code 1"


def test_a_question_that_takes_too_long_or_cannot_be_asked_is_an_error(tmp_path):
    with pytest.raises(TimeoutError, match=r"^no answer within 0\.1 s$"):
        process.ask(["sleep", "60"], limit_s=0.1)
    with pytest.raises(FileNotFoundError):
        process.ask([str(tmp_path / "nothing")])


def worker(command: str, timeout_s: float = 60) -> process.Worker[str]:
    words = lambda pipe: ["/bin/sh", "-c", command, str(pipe)]  # noqa: E731
    return process.Worker(words, b"", bytes.decode, timeout_s=timeout_s, environment=os.environ)


def test_workers_are_heard_together_and_each_ends_by_its_own_fault():
    late = worker("sleep 600", timeout_s=0.5)
    garbled = worker("echo one > /dev/fd/$0; printf '\\377\\n' > /dev/fd/$0; sleep 600")
    failed = worker("echo two > /dev/fd/$0; echo no >&2; exit 3")
    heard = {sender: [] for sender in (late, garbled, failed)}
    going = {*heard}
    while going:
        for sender, message in process.receive(list(going)):
            heard[sender].append(message)
            if isinstance(message, Fault):
                going.discard(sender)
    assert heard[late] == [Fault("timeout", "no result after 0.5 s (--timeout)", Ended(None, None))]
    no_message = Fault("crashed", "the worker sent something that is not a message", Ended(None, None))
    assert heard[garbled] == ["one", no_message]
    no_result = Fault("crashed", "the worker ended without a result (exit code 3)", Ended(3, "no"))
    assert heard[failed] == ["two", no_result]
    assert list(process.receive([])) == []


def test_a_worker_whose_keeper_was_stopped_is_ended_all_the_same(tmp_path):
    command = f"echo $$ >> {tmp_path}/pids; echo up > /proc/self/fd/$0; sleep 600"
    stopped = worker(command)
    assert list(stopped.receive()) == ["up"]
    (pid,) = pids(tmp_path / "pids", 1)
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGSTOP)
    assert stopped.end() == stopped.end() == Ended(None, None)
    assert not any(map(alive, (pid, keeper)))
