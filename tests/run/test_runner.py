"""The runner with stand-in workers: shell commands that end in every way a process can end."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import factories
import msgspec
import projects
import pytest
from processes import alive, pids
from standin_nvml import pynvml

import tcbench
from tcbench.commands.numerics.runner import NumericsRunner
from tcbench.core import messages, store, variables
from tcbench.core.messages import Finished, Message, Stepped
from tcbench.core.record import GpuSample, GpuSamples, GpuState
from tcbench.hardware import machine
from tcbench.run import runner as module
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Runner
from tcbench.run.worker_launch import Launch, python_module, worker_environment

__all__ = ["pynvml"]

OK = Finished("ok", None, factories.make_measurement(), factories.make_environment())


def line(message: Message) -> str:
    return msgspec.json.encode(message).decode()


def send(message: Message | str) -> str:
    """The shell command that writes a message to the worker's pipe, whose number is its $0."""
    return f"printf '%s\\n' {shlex.quote(message if isinstance(message, str) else line(message))} >/dev/fd/$0"


def worker(*commands: str):
    """The command line of a worker that does this; a Python that imports our messages takes thirty times as long."""
    return lambda pipe: ["/bin/sh", "-c", "\n".join(commands), str(pipe)]


def run(*commands: str, timeout_s: float = 60.0, listen=lambda *_: None, cells=1):
    runner = Runner("run-1", timeout_s, worker(*commands), listen, grace_s=1.0)
    return list(runner.run([(PlannedCell(factories.make_cell(batch_size=n + 1)), 0) for n in range(cells)]))


def test_a_result_becomes_a_record():
    heard = []
    (record,) = run(send(Stepped("timed", 6, 0.1)), send(OK), listen=lambda *call: heard.append(call))
    assert (record.status, record.reason, record.run_id, record.trial) == ("ok", None, "run-1", 0)
    assert record.measurement == factories.make_measurement()
    recorded = variables.recorded(worker_environment(record.cell))
    assert record.environment == factories.make_environment(variables=recorded)
    assert record.duration_s > 0
    assert record.log is None
    assert heard[0][2] == Stepped("timed", 6, 0.1)


def test_a_process_of_ours_takes_no_module_from_the_current_directory(tmp_path):
    (tmp_path / "numpy.py").write_text("print('the folder')", "utf-8")
    shown = subprocess.run(python_module(sys.executable, "numpy"), cwd=tmp_path, capture_output=True, text=True)
    assert "the folder" not in shown.stdout
    assert "numpy" in shown.stderr  # a package, which cannot be run
    for command in (Launch().command(7), NumericsRunner(1, 1.0).command(7)):
        assert command[:3] == [sys.executable, "-P", "-m"]
        assert command[4:] == ["7"]


@pytest.mark.parametrize(
    "last",
    [
        '{"type":"finished","status":"ok","reason":null,"measurement":null,"environment":null}',
        '{"type":"finished","status":"failed","reason":null,"measurement":null,"environment":null}',
        line(OK).replace('"step_times_s":[', '"step_times_s":[],"old":['),
        line(Stepped("timed", 6, 0.0)),
        line(Stepped("timed", -1, 0.1)),
    ],
    ids=["ok", "failed", "no steps", "no time", "fewer than none"],
)
def test_a_word_that_cannot_be_true_is_a_crash_and_the_run_goes_on(last):
    records = run(f'case $(cat) in *batch_size\\":1,*) {send(last)};; *) {send(OK)};; esac', cells=2)
    assert [record.status for record in records] == ["crashed", "ok"]
    assert records[0].reason == "the worker sent something that is not a message"


def test_whoever_listens_cannot_end_a_run():
    records = run(send(Stepped("timed", 6, 0.1)), send(OK), listen=lambda *_: 1 / 0, cells=2)
    assert [record.status for record in records] == ["ok", "ok"]


def test_the_worker_gets_the_cell_and_its_threads():
    cell = shlex.quote(line(factories.make_cell(batch_size=1)))
    assert run(f'[ "$OPENBLAS_NUM_THREADS $OMP_NUM_THREADS $(cat)" = "2 2 "{cell} ] && {send(OK)}')[0].status == "ok"


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        (send(Finished("failed", "ValueError: no", None, None)), "failed", "ValueError: no"),
        (send(Finished("oom", "out of memory: x", None, None)), "oom", "out of memory: x"),
        ("exit 7", "crashed", "the worker ended without a result (exit code 7)"),
        ("exit 0", "crashed", "the worker ended without a result (exit code 0)"),
        ("kill -KILL $$", "crashed", "the worker was killed by signal 9 (SIGKILL)"),
        ("kill -SEGV $$", "crashed", "the worker was killed by signal 11 (SIGSEGV)"),
        (
            f"exec {sys.executable} -S -c 'import os, time; os.close('$0'); time.sleep(600)'",
            "crashed",
            "the worker closed its pipe without a result",
        ),
        (f"{send('junk')}; sleep 600", "crashed", "the worker sent something that is not a message"),
    ],
    ids=["failed", "oom", "exit 7", "exit 0", "killed", "crashed", "closed", "junk"],
)
def test_every_end_of_a_worker_is_a_record(end, status, reason):
    (record,) = run(end)
    assert (record.status, record.reason) == (status, reason)
    assert record.measurement is None


def test_a_worker_that_prints_without_end_fills_nothing_and_its_last_words_are_kept():
    """A limit on files stands for a disk."""
    (record,) = run("ulimit -f 16", "head -c 20000000 /dev/zero | tr '\\0' x", "printf '\\nthe end'", "exit 7")
    assert record.reason == "the worker ended without a result (exit code 7)"
    assert record.log.endswith("xxx\nthe end") and len(record.log) <= 4096


def test_a_process_that_escapes_and_holds_the_output_does_not_hold_up_the_trial(monkeypatch):
    monkeypatch.setattr("tcbench.core.process._LOG_READ_S", 0.1)
    held: list[subprocess.Popen[bytes]] = []

    def listen(cell, trial, message):
        with open(f"/proc/{message.pid}/fd/2", "wb") as output:
            held.append(subprocess.Popen(["sleep", "600"], stdout=output))
        os.kill(message.pid, signal.SIGKILL)

    building = '{"type":"building","what":"x","pid":%d}\\n'
    (record,) = run(f"echo here; printf '{building}' $$ >/dev/fd/$0; sleep 60", listen=listen)
    held[0].kill()
    held[0].wait()
    assert record.log == "here"


def test_a_skipped_cell_is_a_record_without_a_process():
    runner = Runner("r", 1.0, lambda pipe: ["/nonexistent"])
    (record,) = runner.run([(PlannedCell(factories.make_cell(), "needs cv2"), 0)])
    assert (record.status, record.reason) == ("skipped", "needs cv2")


def test_an_interrupt_ends_the_worker_and_passes_through(tmp_path):
    def interrupt() -> None:
        pids(tmp_path / "pid", 1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(f"echo $$ >{tmp_path}/pid; sleep 600")
    thread.join()
    assert not any(map(alive, pids(tmp_path / "pid", 1)))


STARTS = "sleep 600 & echo $! >>{pids}; setsid sleep 600 & echo $! $$ >>{pids}"
"""A worker that starts a child, and one in a session of its own; both hold the pipe."""


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("exit 1", "the worker ended without a result (exit code 1)"),
        ("kill -SEGV $$", "the worker was killed by signal 11 (SIGSEGV)"),
        (send(OK), None),
    ],
    ids=["exit", "crash", "ok"],
)
def test_a_worker_that_ends_takes_its_children_along_at_once(tmp_path, end, reason):
    """Though a child of its own lives and holds the pipe, it is not waited for until the timeout."""
    start = time.monotonic()
    (record,) = run(STARTS.format(pids=tmp_path / "pids"), end)
    assert (record.status, record.reason) == ("crashed" if reason else "ok", reason)
    assert time.monotonic() - start < 30
    assert not any(map(alive, pids(tmp_path / "pids", 3)))


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


def run_watched(watched, *commands: str, **options):
    runner = Runner("run-1", 60.0, worker(*commands), watch=watched, **options)
    (record,) = runner.run([(PlannedCell(factories.make_cell(device="cuda:1")), 0)])
    return record


def test_a_gpu_is_watched_while_its_trial_runs_and_gets_the_times_of_the_timed_pass():
    watched = Watched()
    steps = [("warm-up", 3), ("timed", 0), ("timed", 6), ("timed", 12), ("profiled", 5)]
    passes = "\nsleep 0.2\n".join(send(Stepped(stage, n, 0.1)) for stage, n in steps)
    before = time.monotonic()
    record = run_watched(watched, passes, send(OK), listen=lambda *_: watched.now.append("step"))
    assert watched.now[0] == "watching"
    assert watched.now[-1] == "stopped"
    assert watched.now.count("stopped") == 1
    ((device, start),) = watched.began
    assert device == "cuda:1"
    assert before <= start <= before + record.duration_s
    ((from_s, to_s),) = watched.timed
    assert 0.15 <= from_s < to_s <= record.duration_s - 0.1
    assert to_s - from_s >= 0.25
    assert record.gpu.samples[1].power_w == 600.0
    assert (record.gpu.timed_from_s, record.gpu.timed_to_s) == (from_s, to_s)


@pytest.mark.parametrize(
    ("masks", "cooling_s", "records"),
    [((0x40, 0), 3.0, 2), ((0x84, 0x88), 3.0, 2), ((0x04, 0), 3.0, 1), ((0x40, 0), None, 1)],
)
def test_a_trial_whose_gpu_was_slowed_down_is_run_once_more_after_a_pause(monkeypatch, masks, cooling_s, records):
    left, slept, sleep = list(masks), [], time.sleep
    monkeypatch.setattr(module.time, "sleep", lambda seconds: slept.append(seconds) or sleep(min(seconds, 0.01)))

    class Throttled(Watched):
        def stop(self, timed_from_s, timed_to_s):
            samples = (GpuSample(0.0, throttle_mask=0xFF), GpuSample(1.0, throttle_mask=left.pop(0)))
            return GpuSamples(state=GpuState(), samples=samples, timed_from_s=0.5, timed_to_s=1.5)

    runner = Runner("run-1", 60.0, worker(send(OK)), watch=Throttled(), cooling_s=cooling_s)
    both_records = list(runner.run([(PlannedCell(factories.make_cell(device="cuda:0")), 4)]))
    assert [(record.trial, record.status) for record in both_records] == [(4, "ok")] * records
    assert slept.count(3.0) == records - 1
    assert store.current(both_records) == (both_records[-1],)


def test_a_gpu_is_watched_until_its_worker_dies():
    watched = Watched()
    record = run_watched(watched, "kill -KILL $$")
    assert (record.status, watched.now, watched.timed) == ("crashed", ["watching", "stopped"], [(None, None)])
    assert record.gpu is not None


def test_an_interrupt_ends_the_watching():
    watched = Watched()

    def interrupt(*call):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched(watched, send(Stepped("timed", 6, 0.1)), "sleep 600", listen=interrupt)
    assert watched.now == ["watching", "stopped"]


def test_a_gpu_that_cannot_be_asked_leaves_nothing():
    record = run_watched(lambda cell, start: None, send(OK))
    assert (record.status, record.gpu) == ("ok", None)


def test_on_the_cpu_nothing_of_cuda_is_imported():
    code = (
        f"import sys; sys.path.insert(0, {str(Path(factories.__file__).parent)!r})\n"
        "import factories; from tcbench.run import runner\n"
        "assert runner.Runner('r', 1.0).watch(factories.make_cell(), 0.0) is None\n"
        "unwanted = ('tcbench.engine.accelerators.cuda.nvml', 'pynvml', 'cupy')\n"
        "assert not any(name.startswith(unwanted) for name in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == 0


def test_a_real_watch_samples_through_nvml(pynvml):
    watch = Runner("r", 1.0).watch(factories.make_cell(device="cuda:0"), time.monotonic())
    assert watch.stop(None, None).samples[0].sm_clock_mhz == 1755


def test_a_launch_says_which_python_runs_where_and_with_what(tmp_path):
    says = f'[ "$2 $3 $PWD $TCBENCH_CACHE" = "-m tcbench.worker / there" ] && {send(OK).replace("$0", "$4")}'
    python = projects.interpreter(tmp_path / "python", python=says)
    launch = Launch(str(python), Path("/"), {"TCBENCH_CACHE": "there"})
    (record,) = Runner("r", 60.0, launch=launch).run([(PlannedCell(factories.make_cell()), 0)])
    assert (record.status, record.reason) == ("ok", None)


def test_a_python_that_is_not_there_is_a_record(tmp_path):
    launch = Launch(str(tmp_path / "python"))
    (record,) = Runner("r", 60.0, launch=launch).run([(PlannedCell(factories.make_cell()), 0)])
    assert record.status == "crashed"
    assert record.reason.startswith("the worker could not be started: [Errno 2] No such file or directory")


def test_the_load_of_the_host_is_that_of_the_timed_pass():
    spins = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done"  # work, not time: a busy machine takes longer over it
    stays = "sleep 1"  # until it was looked at, which takes a while on a busy machine
    (record,) = run(send(Stepped("timed", 0, 0.1)), spins, send(Stepped("profiled", 0, 0.1)), stays, send(OK))
    assert 0.1 < record.host.elapsed_s < 60
    assert 0.05 < record.host.own_s <= record.host.elapsed_s * 1.2  # it had one thread
    (none,) = run(send(OK))
    assert none.host is None


@pytest.mark.parametrize(
    ("variables", "writable", "has_bytecode", "written"),
    [
        ({}, True, False, True),
        ({}, False, True, True),  # compiled when it was installed
        ({}, False, False, False),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, True, True, False),
        ({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/mine"}, True, True, True),
    ],
)
def test_where_python_may_keep_no_bytecode_a_worker_keeps_it_in_the_cache(
    tmp_path, monkeypatch, variables, writable, has_bytecode, written
):
    monkeypatch.setattr(tcbench, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "cache"))
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if has_bytecode:
        (tmp_path / "__pycache__").mkdir()
    environment = worker_environment(factories.make_cell())
    prefix = variables.get("PYTHONPYCACHEPREFIX") if written else str(tmp_path / "cache" / "bytecode-v2")
    assert environment.get("PYTHONPYCACHEPREFIX") == prefix
    assert written or not environment["PYTHONDONTWRITEBYTECODE"]


SLOW_LOSS = """
import sys, time, msgspec
from tcbench.core.messages import Finished, Stepped
from tcbench.engine.measure import pipe
def job(cell, send):
    send = pipe.in_turns(send)
    send(Stepped("timed", 0, 0.1))
    time.sleep(0.2)
    send(Stepped("timed", 2, 0.1))
    time.sleep(0.6)
    send(Stepped("profiled", 0, 0.1, facts_s=0.6))
    return msgspec.json.decode(sys.argv[2], type=Finished)
pipe.serve(len, job)
"""


def test_a_runner_that_is_stopped_meanwhile_has_the_workers_own_times_and_load():
    """It hears of everything late and at once; a worker that has ended could not be counted any more."""
    watched = Watched()

    def stopped(cell, trial, message):
        if getattr(message, "stage", "") == "timed" and not message.steps:
            time.sleep(2.0)

    command = lambda pipe: [sys.executable, "-c", SLOW_LOSS, str(pipe), line(OK)]  # noqa: E731
    runner = Runner("r", 60.0, command, stopped, watch=watched)
    (record,) = runner.run([(PlannedCell(factories.make_cell(device="cuda:1")), 0)])
    assert 0.2 <= record.host.elapsed_s < 1.0, "without the facts, and without the runner's pause"
    ((from_s, to_s),) = watched.timed
    assert 0.2 <= to_s - from_s < 1.0


STEPS_IN_TURNS = """
import os, sys, time, msgspec
from tcbench.core.messages import Building, Finished, Stepped
from tcbench.engine.measure import pipe
dies_after, ok = int(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=Finished)
def job(cell, send):
    send = pipe.in_turns(send)
    send(Building("imports"))
    for steps in range(4):
        send(Stepped("timed", steps, 0.1))
        time.sleep(0.05)
        if steps == dies_after:
            os._exit(7)
    send(Stepped("profiled", 0, 0.1))
    return ok
pipe.serve(len, job)
"""


def in_turns(dies_after: int = 9):
    """Return the messages of two trials in turns, of which the second may die, and their records."""
    heard = []

    def side(name: str, dies_after: int) -> Runner:
        arguments = [str(dies_after), line(OK)]
        return Runner(
            name,
            60.0,
            lambda pipe: [sys.executable, "-c", STEPS_IN_TURNS, str(pipe), *arguments],
            lambda cell, trial, message: heard.append(
                f"{name}{trial}: {getattr(message, 'steps', type(message).__name__)}"
            ),
        )

    both = side("a", 9).in_turns(side("b", dies_after), PlannedCell(factories.make_cell()), (3, 5))
    return heard, dict(both)


def test_two_trials_step_in_turns():
    heard, records = in_turns()
    assert [records[place].status for place in (0, 1)] == ["ok", "ok"]
    assert [(records[place].run_id, records[place].trial) for place in (0, 1)] == [("a", 3), ("b", 5)]
    each = ["a3: Building", "a3: 0", "b5: Building", "b5: 0", "a3: 1", "b5: 1", "a3: 2", "b5: 2", "a3: 3", "b5: 3"]
    assert heard[:10] == each, "what is imported and built is in its turn, too"
    assert heard[10:] == [f"{who}: {message}" for who in ("a3", "b5") for message in ("TimedPassLoad", "0", "Finished")]


@pytest.mark.parametrize(
    ("available_gib", "ran"), [((9, 7, 5.9, 5), [0, 1]), ((9, 8, 7, 6), [0, 1, 2, 3]), ((0, 0), [0])]
)
def test_as_many_trials_take_turns_as_fit_into_memory(monkeypatch, available_gib, ran):
    """The processes take 2, 1.1 and 0.9 GiB; or 1 GiB each; or it is unknown."""
    available = iter(2**30 * gib for gib in available_gib)
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: int(next(available)))
    heard = []
    runner = Runner(
        "r",
        60.0,
        lambda pipe: [sys.executable, "-c", STEPS_IN_TURNS, str(pipe), "9", line(OK)],
        lambda cell, trial, message: heard.append((cell.batch_size, getattr(message, "steps", type(message).__name__))),
    )
    cells = [PlannedCell(factories.make_cell(batch_size=n)) for n in range(1, 5)]
    records = list(runner.run_group([(cell, 0) for cell in cells]))
    sizes = [n + 1 for n in ran]
    assert [record.cell.batch_size for record in records] == sizes
    assert len({record.turns_began_at for record in records}) == 1
    assert (records[0].turns_began_at is msgspec.UNSET) == (len(ran) == 1)
    started = [(size, message) for size in sizes for message in ("Building", 0)]
    turns = [(size, steps) for steps in range(1, 4) for size in sizes]
    assert [each for each in heard if each[1] != "TimedPassLoad"][: len(started + turns)] == started + turns


def test_load_and_time_are_those_of_a_trials_own_turns():
    """Else its steps and the runner's clock would contradict each other, and nobody would believe the record."""
    _, records = in_turns()
    for record in records.values():
        assert 3 * 0.05 <= record.host.elapsed_s < record.duration_s


def test_the_durations_of_two_in_turns_add_up_to_the_time_that_passed():
    slow = Runner("r", 0.2, worker("sleep 600"), grace_s=1.0)
    began = time.monotonic()
    ended = dict(slow.in_turns(slow, PlannedCell(factories.make_cell()), (0, 1)))
    assert {record.reason for record in ended.values()} == {"no result after 0.2 s (--timeout)"}
    durations_s = [record.duration_s for record in ended.values()]
    assert min(durations_s) >= 0.2
    assert sum(durations_s) <= time.monotonic() - began


def test_who_steps_in_turns_with_one_that_died_goes_on_alone():
    heard, records = in_turns(dies_after=1)
    assert (records[0].status, records[1].status) == ("ok", "crashed")
    assert records[1].reason == "the worker ended without a result (exit code 7)"
    assert heard[-5:] == ["a3: 2", "a3: 3", "a3: TimedPassLoad", "a3: 0", "a3: Finished"]


def test_an_interrupt_ends_both_that_step_in_turns(tmp_path):
    def interrupt(*_):
        pids(started, 2)
        raise KeyboardInterrupt

    started = tmp_path / "started"
    waits = f"echo $$ >> {started}; exec sleep 600"
    waiting = Runner("r", 60.0, worker(f"printf . >/dev/fd/${{{messages.TURNS}#*,}}", waits))
    heard = Runner("r", 60.0, worker(send(Stepped("timed", 6, 0.1)), waits), interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(waiting.in_turns(heard, PlannedCell(factories.make_cell()), (0, 0)))
    assert not [pid for pid in pids(started, 2) if alive(pid)]
