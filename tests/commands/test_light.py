"""tcbench without the extra `ladder` reads, judges and measures own steps, and says what the ladder needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "results"
HIDE = """
import importlib.metadata, sys

HIDDEN = ("chainer", "ml_dtypes", "ml-dtypes", "nvidia", "onednn")

class Hides:
    def find_spec(self, name, *_):
        if name.startswith(HIDDEN):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

def distribution(name, find=importlib.metadata.Distribution.from_name):
    if name.startswith(HIDDEN):
        raise importlib.metadata.PackageNotFoundError(name)
    return find(name)

sys.meta_path.insert(0, Hides())
importlib.metadata.Distribution.from_name = distribution
"""
"""A module that Python runs when it starts. It hides the packages of the extra and their versions."""

STEP = """
from tcbench import step as own

def train():
    sum(range(10000))

def open_session(cell):
    return own.step(train, loss=lambda: 1.0)
"""
SCENARIO = """
schema = 1
title = "Mine"
model.name = "mine"
measure.batch_sizes = [4]
[[config]]
backend = "my_step:open_session"
rungs = ["plain"]
"""


@pytest.mark.long
def test_all_but_the_built_in_networks_works_without_the_extra(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    files = {"site/sitecustomize.py": HIDE, "my_step.py": STEP, "my_step.toml": SCENARIO}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "TCBENCH_CACHE": str(tmp_path / "cache")}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    for command in (
        "run ./my_step.toml --bs 4 --trials 1 --max-time 0.1 --device cpu",
        *("explain", "plot -o mine.png", "profile plain ./my_step.toml --bs 4 --device cpu"),
        *(f"explain {RESULTS}/h200", f"report {RESULTS}/h200 -o gpu.html", f"claims {RESULTS}", "list", "doctor"),
    ):
        done = run("-m", "tcbench", *command.split())
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    ceilings = (
        "from tcbench.engine.accelerators.cpu import ceilings; print(*ceilings.measure(1, 64, 4096, 1)['flops_s'])"
    )
    assert run("-c", ceilings).stdout == "fp32\n"
    for command in ("run", "run --dry-run", "profile fp32", "forecast --gpu V100", "numerics --rungs"):
        done = run("-m", "tcbench", *command.split())
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), f"{command}\n{done.stderr}"
        assert "PIP_CONSTRAINT=build-constraints.txt" in done.stderr and "'.[ladder]'" in done.stderr
