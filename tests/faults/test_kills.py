"""The runner is killed at a moment drawn by chance: nothing that was stored is lost, nothing is left running, and the
same command with --resume measures what is missing and no more."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import faulty
import pytest
from processes import soon

pytestmark = pytest.mark.faults

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
MPI = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py (uv run --extra mpi)")
RUN = ("run", "quick.toml", "--threads", "1", "--out", "results")


@pytest.mark.parametrize(("seed", "ranks"), [*((seed, 1) for seed in range(5)), pytest.param(5, 2, marks=MPI)])
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_run_that_is_killed_at_any_moment_loses_nothing_and_leaves_nothing(tmp_path, number, seed, ranks):
    folder = faulty.make(tmp_path)
    draw = random.Random(f"{number}{seed}")
    words = (*RUN, "--ranks", ranks)
    process = faulty.start(folder, *words)
    # After so many records, and then a while: up to what a trial takes.
    enough, delay_s = draw.randrange(faulty.CELLS), draw.uniform(0.0, 1.5)
    assert soon(lambda: sum(len(faulty.lines(f)) for f in faulty.run_files(folder / "results")) >= enough, 600)
    time.sleep(delay_s)
    stored = {file: faulty.lines(file) for file in faulty.run_files(folder / "results")}
    process.send_signal(number)
    _, errors = process.communicate(timeout=600)

    # By the signal itself before the command line is up.
    assert process.returncode in (130, -number, 0), errors
    if process.returncode == 130:
        assert "interrupted" in errors
        assert "Traceback" not in errors
    assert soon(lambda: not faulty.left(folder), 120), faulty.left(folder)
    for file, lines in stored.items():
        if lines:
            assert faulty.lines(file)[: len(lines)] == lines
    before = [answer for file in faulty.run_files(folder / "results") for answer in faulty.lines(file)]

    done = faulty.run(folder, *words, "--resume")
    assert done.returncode == 0, done.stderr
    file = faulty.run_files(folder / "results")[-1]
    cells = [(f"my_step/{config}", size, "ok") for config in ("one", "two") for size in (1, 2)]
    assert sorted(faulty.answers(file)) == cells
    assert faulty.lines(file)[: len(before)] == before
    assert not list((folder / "results").rglob(".tcbench-*"))
    assert soon(lambda: not faulty.left(folder), 120)


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=600)


def test_an_interrupt_while_a_dataclass_is_made_is_an_interrupt_like_any_other(tmp_path):
    """dataclasses run texts with exec(); after an interrupt in one, CPython ends by SIGINT unless prevented."""
    (tmp_path / "interrupted.py").write_text(
        "import sys\nfrom tcbench import commands as cli\n"
        "@cli.app.command()\ndef interrupted(): exec('raise KeyboardInterrupt')\n"
        "sys.argv = ['tcbench', 'interrupted']\ncli.main()\n"
    )
    done = python(tmp_path, "-m", "interrupted")
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")


def test_ctrl_c_while_modules_are_imported_shows_no_traceback(tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    done = python(tmp_path, "-m", "tcbench", "list")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


PROFILE = ("profile", "my_step/one", "quick.toml", "--bs", "1", "--tool", "ranges", "--threads", "1")
GATE = ("gate", "quick.toml", "--base-python", sys.executable, "--looks", "2", "--threads", "1", "--lenient")


@pytest.mark.parametrize(("words", "ends"), [(PROFILE, (0,)), (GATE, (0, 1))], ids=["profile", "gate"])
def test_what_a_killed_command_left_is_cleaned_up_by_the_next(tmp_path, words, ends):
    folder = faulty.make(tmp_path)
    process = faulty.start(folder, *words)

    def scratch() -> list[Path]:
        # By os.walk, which a folder that is taken away meanwhile does not end.
        walks = (walk for place in ("tmp", "cache") for walk in os.walk(folder / place))
        return [
            Path(place_at) / name
            for place_at, folders, files in walks
            for name in folders + files
            if name.startswith(".tcbench-")
        ]

    assert soon(lambda: scratch() and "sleep 600 " in faulty.left(folder), 600)
    process.kill()
    process.communicate(timeout=600)
    assert scratch()
    assert soon(lambda: not faulty.left(folder), 120), faulty.left(folder)
    done = faulty.run(folder, *words)
    assert done.returncode in ends, done.stderr
    assert not scratch()
    assert not faulty.left(folder)
