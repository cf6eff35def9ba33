"""Programs of users in processes of their own, by a clock that only moves where the program says so."""

import os
import sys
from pathlib import Path

import factories
import msgspec
import pytest

import tcbench
from tcbench.analysis import comparability
from tcbench.core import messages
from tcbench.core.messages import Piloted, Stepped
from tcbench.core.record import Command, Input, MeasureSettings
from tcbench.engine.measure import pipe, program
from tcbench.engine.measure.marked_steps import ProgramError

PROGRAM = """
import atexit, os, sys, time
from types import SimpleNamespace

now_ns = 10**9
time.perf_counter_ns = lambda: now_ns


def spend(ms):
    global now_ns
    now_ns += ms * 10**6


import tcbench


class Loader:
    batch_size = 8

    def __len__(self):
        return 5

    def __iter__(self):
        spend(500)  # starting an epoch
        return self.batches()

    def batches(self):
        for batch in range(5):
            spend(10)
            yield batch


"""
CELL = factories.make_cell(
    "plain",
    8,
    backend="command",
    input=Input(kind="own"),
    unit="samples",
    threads=0,
    measure=MeasureSettings(min_warmup_steps=2, max_time_s=1.0),
)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measure a program with this body, with a number of counted steps (0: in a pilot)."""

    def measure(body, count=6, listen=lambda _: None, cell=CELL, **command):
        monkeypatch.chdir(tmp_path)
        Path("train.py").write_text(PROGRAM + body, "utf-8")
        if count:
            monkeypatch.setenv(messages.STEP_COUNT, str(count))
        line = f"{sys.executable} train.py {command.pop('arguments', '')}"
        return program.measure(cell, Command(line=line, **command), factories.make_environment(), listen)

    return measure


EPOCHS = """
for epoch in range(100):
    for batch in tcbench.steps(Loader()):
        with tcbench.phase("forward"):
            spend(30)
            with tcbench.phase("copy"):
                spend(5)
        if batch == 3:
            with tcbench.phase("evaluate", counted=False):
                spend(1000)
        spend(7)
    spend(2000)
"""


def times(measurement):
    return {phase.name: {round(time_s, 6) for time_s in phase.host_s} for phase in measurement.phases}


def test_without_tcbench_the_loader_is_returned_itself(monkeypatch):
    monkeypatch.delenv("TCBENCH_STEPS", raising=False)
    loader = [1, 2]
    assert tcbench.steps(loader, items=3) is loader
    with tcbench.phase("forward"), tcbench.phase("evaluate", counted=False):
        pass


def test_a_step_lasts_from_one_request_for_a_batch_to_the_next(measured):
    heard = []
    measurement, environment = measured(EPOCHS, listen=heard.append)
    assert [round(s, 6) for s in measurement.step_times_s] == [0.052] * 7
    assert measurement.warmup_times_s == pytest.approx([0.052] * 2)
    assert times(measurement) == {"input": {0.01}, "forward": {0.03}, "copy": {0.005}, "body": {0.007}}
    assert measurement.epoch_starts == (3,)
    assert len(measurement.counted_times_s) == 5  # without the first step of the block, and that of an epoch
    assert measurement.items == 8
    assert "train.py" in environment.sources
    assert environment.threads is msgspec.UNSET
    ended = heard[-1]
    assert (ended.stage, ended.steps) == ("profiled", 0)
    assert ended.facts_s == pytest.approx(0.5 + 2.0 + 2 * 1.0)  # between the epochs, and two evaluations


def test_a_pilot_finds_the_number_of_steps(measured):
    heard = []
    measurement, _ = measured(EPOCHS, count=0, listen=heard.append)
    assert len(measurement.step_times_s) == 5
    assert [message for message in heard if isinstance(message, Piloted)] == [Piloted(20)]  # 1 s of 52 ms


def test_several_batches_make_a_step_and_an_incomplete_one_is_dropped(measured):
    measurement, _ = measured(EPOCHS.replace("Loader()", "Loader(), every=2"))
    assert {round(s, 6) for s in measurement.step_times_s} == {0.104}
    assert times(measurement)["input"] == {0.02}
    assert measurement.epoch_starts == (0, 2, 4, 6)  # two steps in an epoch of five batches
    assert measurement.items == 16


@pytest.mark.parametrize(
    ("items", "counted"), [("items=3", 3), ("items=lambda batch: spend(9) or 2 + batch", 2), ("every=1", 8)]
)
def test_items_are_a_number_or_counted_once_outside_the_time(measured, items, counted):
    measurement, _ = measured(EPOCHS.replace("Loader()", f"Loader(), {items}"))
    assert (measurement.items, times(measurement)["body"]) == (counted, {0.007})


def test_a_step_that_a_break_cuts_off_is_dropped(measured):
    body = EPOCHS.replace("spend(7)", "spend(7)\n        if batch == 2:\n            break")
    measurement, _ = measured(body)
    assert {round(s, 6) for s in measurement.step_times_s} == {0.052}
    assert measurement.epoch_starts == (0, 2, 4, 6)


def test_the_program_ends_in_order_after_its_last_step(measured):
    indented = EPOCHS.replace("\n", "\n    ")
    body = f"import atexit\natexit.register(open, 'exited', 'w')\ntry:{indented}\nfinally:\n    open('finally', 'w')\n"
    measured(body)
    assert Path("exited").exists()
    assert Path("finally").exists()


def test_a_program_may_go_on_after_its_last_step(measured):
    body = EPOCHS.replace("range(100)", "range(3)") + "open('trained', 'w').write(str(epoch))\n"
    measured(body, goes_on=True)
    assert Path("trained").read_text() == "2"


@pytest.mark.parametrize(
    ("body", "command", "says"),
    [
        (
            EPOCHS.replace("range(100)", "range(1)"),
            {},
            r"reported 5 steps and ended; this trial needs 9: .* steps = 2 ",
        ),
        ("print('before')\nsys.exit('bad  flag')", {}, r"the program failed \(exit code 1\): bad  flag"),
        ("os.kill(os.getpid(), 9)", {}, r"killed by signal 9\): it printed nothing"),
        ("import nothing_such", {}, "No module named 'nothing_such'"),
        (EPOCHS.replace("Loader()", "Loader(), unit='tokens'"), {}, 'write unit = "tokens" into the scenario'),
        ("Loader.batch_size = 9" + EPOCHS, {}, "batch size is 9, the scenario's 8"),
        (EPOCHS, {"loop": "gan"}, "no loop 'gan', only 'train'"),
        (EPOCHS.replace("Loader()", "Loader(), items=-1"), {}, "items: expected a number above 0, got -1"),
        (EPOCHS.replace("Loader()", "Loader(), items=lambda _: 'x'"), {}, "items: expected a number above 0, got 'x'"),
        (EPOCHS.replace("Loader()", "Loader(), every=2.5"), {}, "every: expected a whole number of batches"),
        (EPOCHS.replace("Loader()", "Loader(), name=5"), {}, "name and unit: expected texts, got 5"),
        (EPOCHS.replace('"copy"', "3"), {}, "tcbench.phase: expected a name, got 3"),
        (EPOCHS.replace("spend(7)", "list(tcbench.steps([1]))"), {}, "two loops named 'train' run at once: give each"),
        (EPOCHS.replace("Loader()", "[]"), {}, "reported 0 steps and ended"),
        (EPOCHS.replace("Loader()", "Loader(), items=8, every=5"), {}, "each epoch has one step"),
    ],
)
def test_a_program_that_cannot_be_measured_says_why(measured, body, command, says):
    with pytest.raises(ProgramError, match=says):
        measured(body, **command)


def test_a_command_that_does_not_exist_is_named():
    cell = program._Program(CELL, Command(line="no-such-program 3"), 1, lambda _: None)
    with pytest.raises(ProgramError, match="`no-such-program` cannot be started: No such file"):
        cell.run()


def test_the_loop_that_the_scenario_names_is_measured(measured):
    other = "for _ in tcbench.steps([1, 2], name='warm'):\n    spend(1)\n"
    measurement, _ = measured(other + EPOCHS.replace("Loader()", "Loader(), name='gan'"), loop="gan")
    assert {round(s, 6) for s in measurement.step_times_s} == {0.052}


JAX = """
sys.modules["jax"] = SimpleNamespace(live_arrays=list, block_until_ready=lambda arrays: spend(%d))
"""


def test_work_that_still_runs_after_the_last_step_is_not_believed(measured):
    measured(JAX % 10 + EPOCHS)
    with pytest.raises(ProgramError, match=r"not believed: the steps took .* block_until_ready"):
        measured(JAX % 300 + EPOCHS)


TORCH = """
class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at_ns = now_ns * 2  # the device's clock

    def elapsed_time(self, later):
        assert later.at_ns <= done_ns  # else cudaErrorNotReady
        return (later.at_ns - self.at_ns) / 2e6 * float(os.environ["DEVICE_S"])


def synchronize():
    global done_ns
    done_ns = now_ns * 2


cuda = SimpleNamespace(
    is_available=lambda: True, is_initialized=lambda: True, synchronize=synchronize, Event=Event,
    max_memory_reserved=lambda: 12345,
)
sys.modules["mine"] = SimpleNamespace(__file__="mine.py", __version__="3")
sys.modules["torch"] = SimpleNamespace(
    cuda=cuda, __file__="site-packages/torch.py", __version__="2.9",
    get_num_threads=lambda: 3, get_num_interop_threads=lambda: 1
)
"""


def test_a_gpu_is_timed_by_events(measured):
    body = TORCH + EPOCHS
    measurement, environment = measured(body, environment=(("DEVICE_S", "0.96"),))
    assert measurement.step_times_s == pytest.approx([0.052 * 0.96] * 7)
    assert {phase.name: round(sum(phase.device_s) / 5, 6) for phase in measurement.phases} == {
        "input": 0.0096,
        "forward": 0.0288,
        "copy": 0.0048,
        "body": 0.00672,
    }
    assert (measurement.peak_memory_bytes, measurement.peak_memory_of) == (12345, "device")
    assert "mine" not in environment.packages
    assert (environment.packages["torch"], dict(environment.threads)) == ("2.9", {"intra": 3, "inter": 1})
    with pytest.raises(ProgramError, match="not believed"):
        measured(body, environment=(("DEVICE_S", "0.5"),))


def test_the_proxy_behaves_like_its_loader(measured):
    body = """
import copy, pickle
loader = Loader()
proxy = tcbench.steps(loader)
proxy.epoch = 3
assert (loader.epoch, proxy.batch_size, len(proxy), bool(proxy)) == (3, 8, 5, True)
assert list(pickle.loads(pickle.dumps(proxy))) == list(range(5))
assert len(copy.copy(proxy)) == 5
"""
    measurement, _ = measured(body + EPOCHS.replace("tcbench.steps(Loader())", "copy.copy(proxy)"))
    assert measurement.peak_memory_bytes > 2**20
    assert measurement.items == 8


def test_a_forked_process_does_not_mark(measured):
    body = "loader = tcbench.steps(Loader())\nfor epoch in range(100):\n    for batch in loader:\n        spend(42)\n"
    body += (
        "        if batch == 1 and os.fork() == 0:\n            [spend(1) for _ in loader]\n            os._exit(0)\n"
    )
    measurement, _ = measured(body)
    assert {round(s, 6) for s in measurement.step_times_s} == {0.052}


RANKS = """
import atexit
os.environ["RANK"] = "1"
if os.fork():
    os.environ["RANK"] = "0"
    atexit.register(os.wait)
slow = int(os.environ["RANK"])
"""


def test_processes_with_the_same_loop_are_ranks(measured):
    body = RANKS + EPOCHS.replace("spend(7)", "spend(7 + slow)") + "\n"
    measurement, _ = measured(body.replace("Loader()", "Loader(), items=8"))
    assert measurement.items == 16
    assert [round(part.step_times_s[0], 6) for part in measurement.ranks] == [0.052, 0.053]
    assert round(measurement.step_times_s[0], 6) == 0.053  # the slowest rank's


def test_a_gate_takes_the_steps_in_blocks(measured, monkeypatch):
    monkeypatch.setattr(pipe, "_alternates", True)
    heard = []
    measurement, _ = measured(EPOCHS, count=8, listen=heard.append)
    assert (measurement.block_steps, len(measurement.step_times_s)) == (6, 12)
    blocks = [message.steps for message in heard if isinstance(message, Stepped) and message.stage == "timed"]
    assert blocks == [0, 6]  # nothing else may pass the turn on; the end of the pass follows
    assert len(measurement.counted_times_s) == 12 - 2 - 2


@pytest.fixture
def runs(monkeypatch):
    """Replace runs of the program: a start of 2 s and 20 ms per step."""
    lengths = []

    def run(self, steps=0):
        lengths.append(steps)
        return program._Run(elapsed_s=2.0 + 0.02 * steps)

    monkeypatch.setattr(program._Program, "run", run)
    return lengths


def test_two_lengths_give_the_step_and_the_start(runs, monkeypatch):
    heard = []
    command = Command(line="train --steps {steps}")
    pilot, _ = program.measure(CELL, command, factories.make_environment(), heard.append)
    assert pilot.counted_times_s == pytest.approx([0.02])
    assert Piloted(50) in heard
    monkeypatch.setenv(messages.STEP_COUNT, "50")
    runs.clear()
    measurement, _ = program.measure(CELL, command, factories.make_environment(), heard.append)
    assert runs == [2, 2, 52]
    assert (measurement.counted_times_s, measurement.startup_s) == (pytest.approx([0.02]), pytest.approx(2.0))


def test_a_run_is_no_marked_step(measured, runs):
    of_runs = program._Program(CELL, Command(line="a.out"), 3, lambda _: None).measured_by_runs(program._Run())
    records = [
        factories.make_record(cell=CELL, measurement=m) for m in (of_runs, factories.make_measurement(items=8.0))
    ]
    (difference,) = comparability.differences(*(comparability.values([record]) for record in records))
    assert difference.says == "a step is: a run of the program -> marked in its loop"


def test_a_program_without_marks_is_measured_by_its_runs(runs, monkeypatch):
    monkeypatch.setenv(messages.STEP_COUNT, "3")
    measurement, _ = program.measure(CELL, Command(line="a.out"), factories.make_environment(), lambda _: None)
    assert (measurement.step_times_s, measurement.block_steps) == ((2.0,) * 4, 4)
    assert times(measurement) == {"program": {2.0}}


def test_values_replace_their_names_in_the_command():
    line = """run --bs {batch_size} --seed {seed} --n {steps} '{"json": 1}'"""
    words = program._Program(CELL, Command(line=line), 1, lambda _: None)._words(7)
    assert words == ["run", "--bs", "8", "--seed", "0", "--n", "7", '{"json": 1}']
    assert os.environ.get(messages.STEP_COUNT) is None
