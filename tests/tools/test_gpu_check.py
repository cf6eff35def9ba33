"""tools/gpu_check.sh with a stand-in for Python: what it runs, that it goes on, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from libcuda import one_gpu

from tcbench.accelerators.cuda import driver, packages

SCRIPT = Path(__file__).parents[2] / "tools" / "gpu_check.sh"

STAND_IN = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
  "-c import nvidia.dali") exit "${NO_DALI:-0}" ;;
  *load*beyond*)
    if [[ -n ${LIBCUDA:-} ]]; then LD_LIBRARY_PATH=$LIBCUDA "$REAL" "$@"; exit; fi
    echo "${BEYOND-fp16+dali+batched+cuda_graph}" ;;
  *--dry-run*) exit 0 ;;
  "-c import tcbench") exit "${NO_TCBENCH:-0}" ;;
  *gpu_smoke*) exit "${SMOKE:-0}" ;;
  "-m tcbench doctor") head -c "${CHATTY:-100}" /dev/urandom | base64 ;;
  *"run naruse2018"*) sleep "${SLOW:-0}"; exit "${LADDER:-0}" ;;
esac
"""


@pytest.fixture
def python(tmp_path):
    """The environment in which the script takes the stand-in."""
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return {"PYTHON": str(python), "CALLS": str(tmp_path / "calls")}


@pytest.fixture
def check(tmp_path, python):
    """Run the script; its outcome, the stand-in's calls, and what the archive holds."""

    def run(**environment: str) -> tuple[subprocess.CompletedProcess[str], list[str], dict[str, bytes]]:
        done = subprocess.run(
            [str(SCRIPT), str(tmp_path / "out")],
            env={**os.environ, **python, **environment},
            capture_output=True,
            text=True,
            timeout=600,
        )
        with tarfile.open(tmp_path / "out" / "gpu_check.tar.gz") as archive:
            files = {
                member.name.removeprefix("gpu_check/"): archive.extractfile(member).read()
                for member in archive.getmembers()
                if member.isfile()
            }
        return done, (tmp_path / "calls").read_text().splitlines(), files

    return run


def test_what_tells_most_comes_first(check):
    done, calls, files = check()
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing failed")
    steps = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("== ")]
    assert steps == ["doctor", "data", "smoke", "ladder", "beyond", "tests", "chart", "summary"]
    assert set(files) == {"failed.txt", "logs/environment.log", *(f"logs/{step}.log" for step in steps)}
    (ladder,) = [call for call in calls if "run naruse2018" in call and "--dry-run" not in call]
    assert "--config fp32,fp16,fp16+dali+batched+nhwc+fused+static_graph --bs 64,256" in ladder
    (beyond,) = [call for call in calls if "run beyond" in call]
    assert "--config fp16+dali+batched+cuda_graph --bs 64,256" in beyond
    (tests,) = [call for call in calls if "-m pytest" in call]
    assert "-m gpu" in tests
    # A library's warning is no failure there, and a working tree that cannot be written to is none either.
    assert "-W default -p no:cacheprovider" in tests
    (smoke,) = [call for call in calls if "gpu_smoke" in call]
    assert smoke.startswith("tools/gpu_smoke.py --device cuda:0 --budget 120 --out ")
    assert "tests/accelerators/cuda/test_clock.py" in tests
    assert tests.split()[-1] == "tests/backends/torch/test_gpu_peer.py"  # what compiles for minutes


def test_without_dali_the_configs_are_taken_without_it(check):
    _, calls, _ = check(NO_DALI="1")
    assert not any("dali" in call for call in calls if " run " in call)
    assert any("run beyond" in call and "--config fp16+batched+cuda_graph" in call for call in calls)


@pytest.mark.parametrize(
    ("capability", "config"),
    [
        ("75", "fp16+dali+batched+nhwc+fused+cuda_graph"),
        ("90", "fp16+dali+batched+nhwc+fused+cuda_graph+convstats"),
    ],
)
def test_beyond_the_talk_goes_as_far_as_the_gpu_is_new_enough_for(check, tmp_path, capability, config):
    """A config that is skipped would be no failure, and tell nothing."""
    gpu = {"LIBCUDA": str(one_gpu(tmp_path)), "REAL": sys.executable, "CAPABILITY": capability, "DRIVER": "12020"}
    _, calls, _ = check(STEPS="beyond", **gpu)
    (beyond,) = [call for call in calls if "run beyond" in call]
    assert f"--config {config} --bs" in beyond


def test_a_step_that_fails_does_not_stop_the_others_and_is_listed_at_the_end(check):
    done, calls, files = check(SMOKE="1", LADDER="3", BEYOND="")
    assert done.returncode == 1
    listed = ["smoke (exit code 1)", "ladder (exit code 3)", "beyond (the scenario cannot be read)"]
    assert done.stdout.splitlines()[-3:] == [f"failed: {line}" for line in listed]
    assert files["failed.txt"].decode().splitlines() == listed
    assert any("--slide 33" in call for call in calls)


@pytest.mark.slow
def test_a_step_that_takes_too_long_is_ended_and_leaves_time_for_the_charts(check):
    done, calls, _ = check(SLOW="60", BUDGET_S="70")
    assert done.returncode == 1
    failed = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
    assert failed[0].startswith("failed: ladder (ran out of its ")
    assert failed[1:] == ["failed: beyond (no time left)", "failed: tests (no time left)"]
    assert any("--slide 33" in call for call in calls)


def test_only_the_steps_that_are_named_are_run(check):
    done, _, files = check(STEPS="smoke tests")
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("== ")] == ["smoke", "tests"]
    assert "logs/smoke.log" in files


def test_whatever_ends_the_script_what_was_done_is_in_the_archive(tmp_path, python):
    with subprocess.Popen(
        [str(SCRIPT), str(tmp_path / "out")],
        env={**os.environ, **python, "SLOW": "30"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for line in process.stdout:
            if line.startswith("== ladder"):
                os.killpg(process.pid, signal.SIGKILL)
                break
    with tarfile.open(tmp_path / "out" / "gpu_check.tar.gz") as archive:
        assert {"gpu_check/logs/doctor.log", "gpu_check/logs/smoke.log"} <= set(archive.getnames())


def test_a_python_that_lacks_tcbench_is_told_from_a_gpu_that_cannot_be_used(tmp_path, python):
    environment = {**os.environ, **python, "NO_TCBENCH": "1"}
    done = subprocess.run([str(SCRIPT), str(tmp_path / "out")], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu_check: nothing was run, because this Python cannot: ")


@pytest.mark.slow
def test_the_archive_stays_below_its_limit_however_much_is_said(check, tmp_path):
    done, _, files = check(CHATTY=str(20 * 2**20))
    assert done.returncode == 0
    assert (tmp_path / "out" / "gpu_check.tar.gz").stat().st_size <= 16 * 2**20
    assert len(files["logs/doctor.log"]) == 100_000


@pytest.mark.parametrize("extra", [None, "cuda12"])
def test_the_packages_are_those_that_tcbench_finds_to_suit_unless_the_user_says_which(tmp_path, extra):
    """A stand-in for uv writes down what it is asked to run; it runs tcbench's choice, and ends all else."""
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        '#!/usr/bin/env bash\necho "$*" >>"$CALLS"\n'
        f'[[ "$*" == *extra_for* ]] && {{ shift 3; exec {sys.executable} "$@"; }}\nexit 1\n'
    )
    uv.chmod(0o755)
    calls = tmp_path / "calls"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "EXTRA")}
    environment |= {"PATH": f"{uv.parent}:{os.environ['PATH']}", "CALLS": str(calls)} | (
        {"EXTRA": extra} if extra else {}
    )
    done = subprocess.run([str(SCRIPT), str(tmp_path / "out")], env=environment, capture_output=True, timeout=600)
    assert done.returncode == 2
    assert ("extra_for" in calls.read_text()) == (extra is None)
    named = extra or packages.extra_for(driver.gpus()).name
    assert calls.read_text().splitlines()[-1].startswith(f"run --quiet --extra {named} python -c import tcbench")


@pytest.mark.parametrize("device", ["cuda:99", "no-such-device"])
def test_a_device_that_cannot_be_used_is_said_and_nothing_is_run(tmp_path, device):
    done = subprocess.run(
        [str(SCRIPT), str(tmp_path / "out")],
        env={**os.environ, "PYTHON": sys.executable, "DEVICE": device},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first == f"gpu_check: nothing was run, because {device} cannot be used:"
    assert second.startswith(f"tcbench: error: --device {device}: ")
    assert not list((tmp_path / "out").iterdir())


def test_wheels_from_a_folder_that_is_not_there_are_not_passed_over(tmp_path):
    environment = {**os.environ, "PYTHON": "/bin/false", "WHEELS": str(tmp_path / "wheels")}
    done = subprocess.run(
        [str(SCRIPT), str(tmp_path / "out")], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 2
    assert "wheels: No such file or directory" in done.stderr
    assert "nothing was run" not in done.stderr


def test_without_a_folder_it_says_how_it_is_used():
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "tools/gpu_check.sh FOLDER" in done.stdout
    assert "set -uo" not in done.stdout
