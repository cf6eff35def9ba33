"""tools/gpu_smoke.py: on the stand-in for CuPy, with faults planted in pieces of work; on the CPU, in steps."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tcbench.engine.backends import backend

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "tools" / "gpu_smoke.py"

ON_A_STAND_IN = """
import os, signal, sys, time
import fake_gpu
fake_gpu.pytest_configure()
import gpu
gpu.CONFIGS = ("fp16",)
from tcbench.engine.accelerators.cuda import live
launch = live.CudaAccelerator.launch
lost = []

def faulty(self, work, *arrays):
    if lost:
        raise RuntimeError("an illegal memory access was encountered")
    if work.name == "relu":
        raise RuntimeError("planted:\\nit raises")
    if work.name == "relu_backward":
        lost.append(work)
        raise RuntimeError("an illegal memory access was encountered")
    if work.name == "to_half":
        time.sleep(600)
    if work.name == "unscale":
        os.kill(os.getpid(), signal.SIGSEGV)
    if work.name == "add":
        a, b, c = arrays
        arrays = a, a, c
    launch(self, work, *arrays)

def upload(self, host):
    if lost:
        raise RuntimeError("an illegal memory access was encountered")
    return uploaded(self, host)

uploaded = live.CudaAccelerator.upload
live.CudaAccelerator.launch, live.CudaAccelerator.upload = faulty, upload
"""

IN_STEPS = """
import os, signal, sys
if any("worker" in word for word in sys.orig_argv):
    from tcbench.engine.backends.chainer.rungs import RUNGS
    from tcbench.engine.models import MODELS
    from tcbench.engine.models.small import WELL_CONDITIONED
    MODELS["resnet50"] = WELL_CONDITIONED

    def raises(*_):
        raise RuntimeError("planted:\\nit raises")

    def dies(*_):
        os.kill(os.getpid(), signal.SIGSEGV)

    type(RUNGS["batched"]).optimizer = raises
    type(RUNGS["nhwc"]).parts = dies
"""


def smoke(tmp_path: Path, plant: str, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run the smoke test with `plant` executed at the start of every process; return the run and its lines by item."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(plant)
    path = os.pathsep.join([str(site), str(ROOT / "tests"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, str(SMOKE), "--out", str(tmp_path / "out"), *options],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()[:-1]]
    return done, {
        item: f"{verdict} {reason}".strip() for verdict, rest in lines for item, _, reason in [rest.partition(": ")]
    }


@pytest.mark.slow
def test_work_that_raises_is_wrong_hangs_or_kills_its_process_is_a_line_each_and_the_others_go_on(tmp_path):
    patterns = ("unscale*", "to_*", "relu*", "add 6*", "add_bias*", "max_pool_f*")
    done, by_test = smoke(tmp_path, ON_A_STAND_IN, "--budget", "250", "--item-seconds", "8", *patterns)
    by_name: dict[str, set[str]] = {}
    for item, words in by_test.items():
        by_name.setdefault(item.split()[0], set()).add(words)
    assert by_name["unscale"] == {"FAILED its process ended with SIGSEGV"}
    assert by_name["to_half"] == {"FAILED hangs: did not end within 8 s"}
    assert all(words.startswith("FAILED RuntimeError: planted: it raises (") for words in by_name["relu"])
    assert all(words.startswith("FAILED RuntimeError: an illegal memory") for words in by_name["relu_backward"])
    assert all(words.startswith("FAILED AssertionError: add ") and "is off by" in words for words in by_name["add"])
    # Also those that come after a GPU that is lost.
    assert by_name["add_bias"] == by_name["max_pool_forward"] == by_name["to_single"] == {"ok"}
    assert done.returncode == 1
    details = (tmp_path / "out" / "details.log").read_text()
    assert "Traceback" in details and "Fatal Python error: Segmentation fault" in details
    assert not done.stderr


@pytest.mark.slow
def test_a_step_that_raises_or_kills_its_process_is_a_line_and_the_others_go_on(tmp_path):
    options = ("--device", "cpu", "--budget", "250", "--item-seconds", "150")
    done, by_config = smoke(tmp_path, IN_STEPS, *options, "fp32", "fp16+batched", "fp16+nhwc", "tf32")
    crashed = by_config.pop("fp16+nhwc")
    assert crashed.startswith("FAILED crashed: ") and "SIGSEGV" in crashed
    raised = "FAILED RuntimeError: planted: it raises"
    assert by_config == {"fp32": "ok", "fp16+batched": raised, "tf32": "skipped tf32: needs cuda"}
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("1 ok, 1 skipped, 2 FAILED; details in ")
    assert "planted" in (tmp_path / "out" / "details.log").read_text()


def test_what_there_is_no_time_for_is_said_item_by_item(tmp_path):
    done, by_config = smoke(tmp_path, "", "--device", "cpu", "--budget", "0", "fp32", "fp16")
    assert by_config == dict.fromkeys(["fp32", "fp16"], "FAILED not run: the budget is used up")
    assert done.returncode == 1


@pytest.mark.parametrize("framework", ["chainer", "torch"])
def test_no_rung_is_left_out(framework):
    configs = tomllib.loads((ROOT / "tools" / "gpu_smoke.toml").read_text())["config"]
    rungs = {rung for config in configs if config.get("backend", "chainer") == framework for rung in config["rungs"]}
    assert rungs == set(backend(framework).RUNGS.rungs)
