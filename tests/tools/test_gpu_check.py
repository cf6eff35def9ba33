"""tools/gpu_check.sh with a stand-in for Python: what it runs, that it goes on, and what it leaves."""

import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from libcuda import one_gpu

from tcbench.engine.accelerators.cuda import driver, packages

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "tools" / "gpu_check.sh"

STAND_IN = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
  "-c import nvidia.dali") exit "${NO_DALI:-0}" ;;
  "-c import torch") exit "${NO_TORCH:-0}" ;;
  *load*)
    if [[ -n ${LIBCUDA:-} ]]; then LD_LIBRARY_PATH=$LIBCUDA "$REAL" "$@"; exit; fi
    [[ $* == *naruse2018* ]] && echo fp16,fp16+dali || echo fp16+dali+batched+cuda_graph
    exit "${UNREADABLE:-0}" ;;
  *--dry-run*) sleep "${SLOW_START:-0}" ;;
  "-c import tcbench."*)
    printf "Traceback\nModuleNotFoundError: No module named 'typer'" >&2
    exit "${NO_TCBENCH:-0}" ;;
  *"pip install"*) mkdir "$OUT/site" ;;
  *gpu_smoke*) exit "${SMOKE:-0}" ;;
  "-m tcbench doctor") head -c "${CHATTY:-100}" /dev/urandom | base64; sleep "${SLOW:-0}" ;;
  *"run naruse2018"*)
    [[ $* =~ "--label "([a-z]+) ]]
    mkdir -p "$OUT/gpu_check/results/here" && touch "$_/naruse2018_${BASH_REMATCH[1]}.jsonl"
    exit "${LADDER:-0}" ;;
esac
"""
ALL = ["doctor", "data", "smoke", "tests", "torch", "best", "ladder", "beyond", "chart", "summary"]


@pytest.fixture
def python(tmp_path):
    """The environment in which the script takes the stand-in."""
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return {"PYTHON": str(python), "CALLS": str(tmp_path / "calls"), "OUT": str(tmp_path / "out")}


def script(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script's outcome; what it leaves is in `out`."""
    command = [str(SCRIPT), str(folder / "out")]
    environment = {name: value for name, value in (os.environ | environment).items() if value}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture
def check(tmp_path, python):
    """Run the script; its outcome, the stand-in's calls, and what the archive holds."""

    def run(**environment: str) -> tuple[subprocess.CompletedProcess[str], list[str], dict[str, bytes]]:
        calls = tmp_path / "calls"
        calls.unlink(missing_ok=True)
        done = script(tmp_path, **python | environment)
        with tarfile.open(tmp_path / "out" / "gpu_check.tar.gz") as archive:
            members = [member for member in archive.getmembers() if member.isfile()]
            files = {member.name.removeprefix("gpu_check/"): archive.extractfile(member).read() for member in members}
        return done, calls.read_text().splitlines(), files

    return run


def steps(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The steps that were begun, in order, with their limits in seconds."""
    begun = re.findall(r"^== (\S+) \(at \d+ s, at most (\d+) s\)$", done.stdout, re.MULTILINE)
    return {name: int(limit_s) for name, limit_s in begun}


def test_what_tells_of_the_most_comes_first_then_the_best_config(check):
    done, calls, files = check()
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing failed")
    assert list(steps(done)) == ALL
    assert set(files) >= {"steps.txt", "logs/environment.log", *(f"logs/{step}.log" for step in ALL)}
    best, ladder = [call for call in calls if "run naruse2018" in call and "--dry-run" not in call]
    assert "--config fp16+dali+batched+nhwc+fused+static_graph --bs 64" in best
    assert "--config fp16,fp16+dali --bs 64" in ladder
    (beyond,) = [call for call in calls if "run beyond" in call]
    assert "--config fp16+dali+batched+cuda_graph --bs 64" in beyond
    tests, torch = [call for call in calls if "-m pytest" in call]
    assert "-m gpu" in tests
    # A library's warning is no failure there, and a working tree that cannot be written to is none either.
    assert "-W default -p no:cacheprovider" in tests
    assert "tests/engine/accelerators/test_event_clock.py" in tests
    assert "torch" not in tests
    assert torch.split()[-1] == "tests/engine/backends/torch"  # what compiles for minutes
    (smoke,) = [call for call in calls if "gpu_smoke" in call]
    assert smoke.startswith("tools/gpu_smoke.py --device cuda:0 --budget 120 --out ")


def test_without_dali_what_is_skipped_is_named_and_runs_with_other_input(check):
    done, calls, _ = check(NO_DALI="1")
    assert "note: DALI is not installed; skipped are fp16+dali fp16+dali+batched+cuda_graph\n" in done.stdout
    both = [f"{name}-{way}" for name in ("best", "ladder", "beyond") for way in ("synthetic", "opencv")]
    assert list(steps(done)) == [*ALL[:5], *both, *ALL[8:]]
    measured = [call for call in calls if "--bs 64" in call]
    options = [re.search(r"--config (\S+) .*?(--data synthetic)?$", call).groups() for call in measured]
    assert options[2:] == [
        ("fp16,fp16", "--data synthetic"),
        ("fp16,fp16+opencv", None),
        ("fp16+batched+cuda_graph", "--data synthetic"),
        ("fp16+opencv+batched+cuda_graph", None),
    ]


def test_without_pytorch_its_tests_are_named_as_skipped(check):
    done, _, _ = check(NO_TORCH="1", STEPS="doctor torch")
    assert "note: PyTorch is not installed; its tests are skipped\n" in done.stdout
    assert list(steps(done)) == ["doctor"]


def test_three_calls_of_ten_minutes_have_time_for_all_even_without_dali(check):
    done, _, _ = check(NO_DALI="1", BUDGET_S="100000")
    limits = steps(done)
    charts_s = limits.pop("chart") + limits.pop("summary")
    start_s = 20  # measured with real packages: 14, and 5 once the wheels are there
    assert sum(limits.values()) <= 3 * (570 - 60 - start_s)
    assert charts_s <= 2 * 60


def test_the_budget_counts_what_comes_before_the_first_step(check):
    done, _, _ = check(SLOW_START="1.1", STEPS="doctor")
    assert "== doctor (at 0 s" not in done.stdout


def test_what_one_call_has_no_time_for_the_next_one_does_and_neither_does_a_thing_twice(check):
    done, calls, _ = check(BUDGET_S="100")  # less what is kept for the charts: enough for the first two steps
    assert (done.returncode, list(steps(done))) == (1, ["doctor", "data"])
    *_, to_come, failed = done.stdout.splitlines()
    assert to_come == f"to come: {' '.join(ALL[2:8])}: the same call again goes on"
    assert failed == "nothing failed so far"
    done, calls, files = check()
    assert (done.returncode, list(steps(done))) == (0, ALL[2:])
    assert not any("doctor" in call for call in calls)
    assert all(re.search(r"--label \S+ --resume", call) for call in calls if "--bs 64" in call)
    done, _, _ = check()
    assert (done.returncode, list(steps(done))) == (0, ["chart", "summary"])
    assert len(files["steps.txt"].splitlines()) == len(ALL)


def test_wheels_go_beside_the_interpreter_once(check, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("a.whl", "b.whl"):
        (wheels / name).touch()
        for call in range(2):
            _, calls, _ = check(WHEELS=str(wheels), STEPS="doctor")
            installed = [call for call in calls if "pip install" in call]
            assert len(installed) == (call == 0)


@pytest.mark.parametrize(
    ("capability", "config"),
    [("75", "fp16+dali+batched+nhwc+fused+cuda_graph"), ("90", "fp16+dali+batched+nhwc+fused+cuda_graph+convstats")],
)
def test_beyond_the_talk_goes_as_far_as_the_gpu_is_new_enough_for(check, tmp_path, capability, config):
    """A config that is skipped would be no failure, and tell nothing."""
    gpu = {"LIBCUDA": str(one_gpu(tmp_path)), "REAL": sys.executable, "CAPABILITY": capability, "DRIVER": "12020"}
    _, calls, _ = check(STEPS="beyond", **gpu)
    (beyond,) = [call for call in calls if "run beyond" in call]
    assert f"--config {config} --bs" in beyond


def test_a_step_that_fails_does_not_stop_the_others_and_is_listed_at_the_end(check):
    done, calls, files = check(SMOKE="1", LADDER="3")
    assert done.returncode == 1
    listed = ["smoke: exit code 1", "best: exit code 3", "ladder: exit code 3"]
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()[-3:]] == [f"failed: {one}" for one in listed]
    assert all(one in files["steps.txt"].decode() for one in listed)
    assert any("--slide 33" in call for call in calls)


def test_scenarios_that_cannot_be_read_are_said(check):
    done, _, _ = check(UNREADABLE="1")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "failed: configs: cannot be read (0 s)")


def test_of_steps_that_run_out_of_their_time_only_those_that_keep_what_is_done_are_begun_again(check, tmp_path):
    """A stand-in for timeout, which ends what measures and the tests at once."""
    (tmp_path / "timeout").write_text(
        '#!/usr/bin/env bash\n[[ $* == *"--bs 64"* || $* == *pytest* ]] && exit 124\nexec /usr/bin/timeout "$@"\n'
    )
    (tmp_path / "timeout").chmod(0o755)
    done, _, files = check(PATH=f"{tmp_path}:{os.environ['PATH']}", STEPS="tests ladder")
    assert "to come: ladder: " in done.stdout
    assert files["steps.txt"].startswith(b"tests: ran out of its 240 s (")
    done, _, _ = check(STEPS="tests ladder")
    assert list(steps(done)) == ["ladder"]


@pytest.mark.slow
def test_a_step_that_the_budget_cuts_short_is_to_come(check):
    """Sixteen seconds: a step that has less than half of its time is not begun."""
    done, _, files = check(SLOW="60", BUDGET_S="77", STEPS="doctor")
    assert (done.returncode, list(steps(done)), files["steps.txt"]) == (1, ["doctor"], b"")
    assert "to come: doctor: the same call again goes on" in done.stdout


def test_only_the_steps_that_are_named_are_run_and_charts_are_drawn_of_what_there_is(check):
    drawn = {steps_: set(steps(check(STEPS=f"{steps_} chart summary")[0])) for steps_ in ("smoke", "best", "ladder")}
    assert drawn == {"smoke": {"smoke"}, "best": {"best", "chart"}, "ladder": {"ladder", "chart", "summary"}}


def test_whatever_ends_the_script_what_was_done_is_in_the_archive(tmp_path, python):
    with subprocess.Popen(
        [str(SCRIPT), str(tmp_path / "out")],
        env={**os.environ, **python},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for line in process.stdout:
            if line.startswith("== best"):
                os.killpg(process.pid, signal.SIGKILL)
                break
    with tarfile.open(tmp_path / "out" / "gpu_check.tar.gz") as archive:
        assert {"gpu_check/logs/doctor.log", "gpu_check/logs/smoke.log"} <= set(archive.getnames())


def test_a_python_that_lacks_tcbench_is_told_from_a_gpu_that_cannot_be_used(tmp_path, python):
    done = script(tmp_path, **python, NO_TCBENCH="1")
    assert done.returncode == 2
    said, why = done.stderr.splitlines()
    assert said == f"gpu_check: nothing was run, because this Python cannot: {python['PYTHON']}"
    assert why == "ModuleNotFoundError: No module named 'typer'"


def test_a_python_that_lacks_what_chainer_needs_is_told_before_every_trial_fails_of_it(tmp_path):
    """pip brings Chainer's wheel without them there: `--no-deps`."""
    (tmp_path / "six.py").write_text("raise ModuleNotFoundError(\"No module named 'six'\")")
    done = script(tmp_path, PYTHON=sys.executable, PYTHONPATH=str(tmp_path), DEVICE="cpu", STEPS="none")
    assert (done.returncode, done.stderr.splitlines()[1:]) == (2, ["ModuleNotFoundError: No module named 'six'"])


@pytest.mark.slow
def test_the_archive_stays_below_its_limit_however_much_is_said(check, tmp_path):
    done, _, files = check(CHATTY=str(20 * 2**20))
    assert done.returncode == 0
    assert (tmp_path / "out" / "gpu_check.tar.gz").stat().st_size <= 16 * 2**20
    assert len(files["logs/doctor.log"]) == 100_000


@pytest.fixture
def interpreters(tmp_path):
    """Run the script with stand-ins for uv, which runs tcbench's choice of packages, and python3: their calls, up to
    the import that they both refuse."""
    refuses = '[[ "$*" == *"import tcbench."* ]] && exit 1'
    chooses = f'[[ "$*" == *extra_for* ]] && {{ shift 3; exec {sys.executable} "$@"; }}\nexit "${{NO_UV:-0}}"'
    for name, runs in {"uv": f"{refuses}\n{chooses}", "python3": refuses}.items():
        (tmp_path / name).write_text(f'#!/usr/bin/env bash\necho "{name} $*" >>"$CALLS"\n{runs}\n')
        (tmp_path / name).chmod(0o755)

    def run(**environment: str) -> str:
        here = {"PYTHON": "", "EXTRA": "", "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
        assert script(tmp_path, **here | environment).returncode == 2
        return (tmp_path / "calls").read_text()

    return run


@pytest.mark.parametrize("extra", [None, "cuda12"])
def test_the_packages_are_those_that_tcbench_finds_to_suit_unless_the_user_says_which(interpreters, extra):
    calls = interpreters(**({"EXTRA": extra} if extra else {}))
    assert ("extra_for" in calls) == (extra is None)
    named = extra or packages.extra_for(driver.gpus()).name
    assert calls.splitlines()[-1].startswith(f"uv run --quiet --extra {named} python -c import tcbench.")


def test_where_uv_cannot_make_an_environment_or_wheels_are_brought_it_is_python3(interpreters, tmp_path):
    assert interpreters(NO_UV="1", EXTRA="cuda13").splitlines()[-1].startswith("python3 -c import tcbench.")
    (tmp_path / "calls").unlink()
    (tmp_path / "wheels").mkdir()
    assert interpreters(WHEELS=str(tmp_path / "wheels")).startswith("python3 -m pip install --quiet")


def test_a_device_that_cannot_be_used_is_said_and_nothing_is_run(tmp_path):
    done = script(tmp_path, PYTHON=sys.executable, DEVICE="cuda:99")
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first == "gpu_check: nothing was run, because cuda:99 cannot be used:"
    assert second.startswith("tcbench: error: --device cuda:99: ")
    assert not list((tmp_path / "out").iterdir())


def test_wheels_from_a_folder_that_is_not_there_are_not_passed_over(tmp_path):
    done = script(tmp_path, PYTHON="/bin/false", WHEELS=str(tmp_path / "wheels"))
    assert done.returncode == 2
    assert "wheels: No such file or directory" in done.stderr
    assert "nothing was run" not in done.stderr


def test_without_a_folder_it_says_how_it_is_used():
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "tools/gpu_check.sh FOLDER" in done.stdout
    assert "set -uo" not in done.stdout
