"""Host profiles: py-spy's stacks by phase, put together with a recording, kept and read back."""

import json
import subprocess
import sys

import msgspec
import projects
import pytest
from factories import make_record

from tcbench.core.errors import TraceError
from tcbench.core.host_profile import Frame, Stack
from tcbench.core.recording import HostSpan, Recording
from tcbench.tracing import host

LOOP = "<module> (worker.py:1);measured (/x/tcbench/engine/measure/worker.py:9);"
LOOP += "profile (/x/tcbench/engine/measure/loop.py:160)"
SESSION = "/x/tcbench/engine/backends/chainer/session.py"
PLACES = {"io": f"{SESSION}:40", "forward": f"{SESSION}:50"}
IO, FORWARD = (f"{name} ({place})" for name, place in PLACES.items())
LINK = "Link.__call__ (/v/lib/python3.11/site-packages/chainer/link.py:280)"
RAW = f"""\
{LOOP};{IO} 10
{LOOP};{FORWARD} 5
{LOOP};{FORWARD};{LINK} 15
{LOOP} 7
Thread.run (/usr/lib/python3.11/threading.py:971);other (/x/tcbench/y.py:3) 90
{LOOP};unknown (/x/tcbench/z.py:1) 3
not a stack
"""


def recording() -> Recording:
    spans = []
    for step in range(2):
        at = step * 100_000_000
        spans += [
            HostSpan("phase", "io", step, "io", at, at + 20_000_000),
            HostSpan("phase", "forward", step, "forward", at + 20_000_000, at + 100_000_000),
            HostSpan("step", "step", step, None, at, at + 100_000_000),
        ]
    return Recording(thread=1, phases=("io", "forward"), spans=tuple(spans), places=PLACES)


def test_samples_are_told_apart_by_the_phase_below_the_loop():
    stacks = [(phase, len(frames), count) for phase, frames, count in host.sampled(RAW, PLACES)]
    assert stacks == [("io", 1, 10), ("forward", 1, 5), ("forward", 2, 15)]


def test_a_phases_recorded_time_is_shared_out_by_its_samples():
    profile = host.profile_of(make_record(), recording(), "py-spy", RAW)
    forward = Frame("forward", "tcbench/engine/backends/chainer/session.py", 50)
    assert profile.stacks[1:] == (
        Stack("forward", (forward,), pytest.approx(0.02)),
        Stack("forward", (forward, Frame("Link.__call__", "chainer/link.py", 280)), pytest.approx(0.06)),
    )
    assert (profile.steps, profile.samples, profile.step_s) == (2, 30, pytest.approx(0.1))
    assert profile.overhead == pytest.approx(0.1 / profile.timed_step_s - 1)

    with pytest.raises(TraceError, match="no sample of the steps"):
        host.profile_of(make_record(), recording(), "py-spy", "other (x.py:1) 5\n")


def test_a_profile_is_read_back_from_its_speedscope_file(tmp_path):
    profile = host.profile_of(make_record(), recording(), "py-spy", RAW)
    path = tmp_path / f"host-20261122-120000{host.SUFFIX}"
    host.write(profile, path)
    assert host.read(path) == profile
    document = json.loads(path.read_bytes())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    forward = document["profiles"][1]
    assert (forward["type"], forward["unit"], forward["startValue"]) == ("sampled", "seconds", 0)
    assert forward["endValue"] == pytest.approx(sum(forward["weights"])) == pytest.approx(0.08)
    assert max(map(max, forward["samples"])) < len(document["shared"]["frames"])


@pytest.mark.parametrize("content", [b"", b"{}", b'{"shared": {"frames": []}, "profiles": 3}', b"\xff"])
def test_what_is_no_profile_is_one_clear_line(tmp_path, content):
    path = tmp_path / f"x{host.SUFFIX}"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="no host profile") as error:
        host.read(path)
    assert "\n" not in str(error.value)
    assert host.newest(tmp_path) == ()


def test_a_sample_of_a_frame_that_is_not_there_is_refused(tmp_path):
    path = tmp_path / f"x{host.SUFFIX}"
    host.write(host.profile_of(make_record(), recording(), "py-spy", RAW), path)
    document = json.loads(path.read_bytes())
    document["profiles"][0]["samples"][0] = [99]
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match="no host profile"):
        host.read(path)


def test_the_newest_profile_of_a_cell_counts(tmp_path):
    profile = host.profile_of(make_record(), recording(), "py-spy", RAW)
    for name, steps in (("host-b-20261122-120000", 5), ("host-a-20261122-130000", 6)):
        host.write(msgspec.structs.replace(profile, steps=steps), tmp_path / (name + host.SUFFIX))
    assert [one.steps for one in host.newest(tmp_path)] == [6]


@pytest.mark.skipif(host.find() is None, reason="py-spy is not installed")
def test_py_spy_samples_a_process_until_it_ends(tmp_path):
    py_spy = host.find()
    if trouble := host.problem(py_spy):
        pytest.skip(trouble)
    code = "import time\ndef spin():\n  while time.thread_time() < 1.5: pass\nspin()\n"
    program = tmp_path / "program.py"
    program.write_text(code)
    process = subprocess.Popen([sys.executable, str(program)])
    raw = host.PySpy(py_spy, process.pid, tmp_path).raw()
    process.wait()
    counted = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in raw.splitlines()}
    assert any(f"spin ({program}:2)" in stack and count > 20 for stack, count in counted.items())


def test_py_spy_that_may_not_attach_says_why(tmp_path):
    refusing = projects.interpreter(tmp_path / "py-spy", "echo 'Permission Denied: Try again' >&2", "exit 1")
    assert host.problem(refusing) == "py-spy may not attach: Permission Denied: Try again"
    with pytest.raises(TraceError, match="left no samples: Permission Denied"):
        host.PySpy(refusing, 1, tmp_path).raw()
