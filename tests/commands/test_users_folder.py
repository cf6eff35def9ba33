"""Files of the user's folder that are named like modules: no command imports one in place of the real module."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import projects
import pytest

pytestmark = pytest.mark.long

NAMES = ("pickle", "signal", "types", "socket", "numpy", "matplotlib", "msgspec", "resource")
MARK = """import os
open({ran!r}, "a").write(f"{{__name__}} in {{open('/proc/self/cmdline').read()}}\\n")
"""

READING = ("explain", "plot", "report", "claims", "roofline", "history", "export", "baseline set main")
COMMANDS = (
    *("list", "doctor", "run ./my_step.toml --threads 1", "run cpu --dry-run", "submit cpu --partition a --dry-run"),
    "profile flat ./my_step.toml && timeline",
    *(f"{command} run.jsonl" for command in READING),
    *("diff run.jsonl --config fp32 --to fp16", "compare run.jsonl run.jsonl"),
    *("numerics --steps 1 --seeds 2 --timeout 0.1", "gate ./my_step.toml --base HEAD --looks 2 --lenient"),
    *("forecast --gpu H200 --bs 2,3 --config fp32",),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = projects.make(tmp_path_factory.mktemp("users") / "mine")
    for name in NAMES:
        (folder / f"{name}.py").write_text(MARK.format(ran=str(folder / "ran")))
    run = Path(__file__).parents[2] / "results/h200/naruse2018-20261126-235859.jsonl"
    lines = run.read_text().splitlines(keepends=True)
    (folder / "run.jsonl").write_text(
        "".join(line for line in lines if '"config":"fp32"' in line or '"config":"fp16"' in line)
    )
    (folder / "matplotlibrc").write_bytes(b"# caf\xe9\n")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_it(folder, command):
    tcbench = Path(sys.executable).with_name("tcbench")
    path = "" if command.startswith("submit") else os.environ["PATH"]  # without Slurm
    environment = {**os.environ, "TCBENCH_CACHE": str(folder / "cache"), "PATH": path}
    for words in map(shlex.split, command.split("&&")):
        done = subprocess.run([tcbench, *words], cwd=folder, env=environment, capture_output=True, text=True)
        assert not (folder / "ran").exists(), (folder / "ran").read_text()
        assert done.returncode in (0, 3, 5), done.stderr
