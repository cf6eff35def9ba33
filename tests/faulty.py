"""A run that is quick and leaves traces, for tests that end it, fill its disk or take its folder away."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tcbench.core import store

STEP = """
import subprocess
import time

from tcbench import step as own


def open_session(cell):
    subprocess.Popen(["sleep", "600"], start_new_session=True)

    def io():
        time.sleep(0.005)

    def forward():
        time.sleep(0.005)

    return own.step(io, forward, loss=lambda: 1.0)
"""
"""Each trial starts a process in a session of its own, too, which nothing of the step ends."""

SCENARIO = """
schema = 1
title = "Sleeps"
model.name = "sleeper"

[measure]
batch_sizes = [1, 2]
trials = 1
max_time_s = 0.2

[[config]]
backend = "my_step:open_session"
rungs = ["one"]

[[config]]
backend = "my_step:open_session"
rungs = ["two"]
"""

CELLS = 4

MARK = "TCBENCH_TEST_OF_FAULTS"
"""The environment variable that everything has which a test started: its folder."""


def make(folder: Path) -> Path:
    """The project, with nothing measured yet."""
    (folder / "my_step.py").write_text(STEP, "utf-8")
    (folder / "quick.toml").write_text(SCENARIO, "utf-8")
    (folder / "tmp").mkdir()
    return folder


def start(folder: Path, *words: str | int | Path, cwd: Path | None = None) -> subprocess.Popen[str]:
    """`tcbench` in the folder, in a session of its own."""
    places = {"TCBENCH_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    return subprocess.Popen(
        [sys.executable, "-m", "tcbench", *map(str, words)],
        cwd=cwd or folder,
        env={**os.environ, **places, MARK: str(folder), "PYTHONPATH": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, *words: str | int | Path) -> subprocess.CompletedProcess[str]:
    """The same, to its end."""
    process = start(folder, *words)
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_files(results: Path) -> list[Path]:
    """The files of records, oldest first."""
    return sorted(results.glob("*/*.jsonl"))


def lines(file: Path) -> list[bytes]:
    """The whole lines of a file; none where it is not there yet."""
    return file.read_bytes().split(b"\n")[:-1] if file.is_file() else []


def answers(file: Path) -> list[tuple[str, int, str]]:
    """Return config, batch size and status of each record in a file."""
    return [(record.cell.config, record.cell.batch_size, record.status) for record in store.read([file]).records]


def left(folder: Path) -> list[str]:
    """The processes of the test's that still live."""
    commands = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={folder}\0".encode() in (path / "environ").read_bytes():
                commands.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return commands


@contextmanager
def disk(folder: Path, n_bytes: int) -> Iterator[Path | None]:
    """A disk of that size; None where none may be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Take all room of a disk but so many bytes; the file that does."""
    space = os.statvfs(folder)
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(max(0, space.f_bavail * space.f_bsize - leave)))
    return ballast


def write_records(path: Path, images_per_s: float = 40.0, commit: str | None = None) -> Path:
    """A file of trials as real ones are, of a commit."""
    import factories

    changes: dict[str, Any] = {"images_per_s": images_per_s}
    if commit:
        changes |= {"environment": factories.make_environment(commit=commit), "run_id": path.stem}
    trials = [trial for config in ("fp32", "fp32+dali") for trial in factories.make_trials(config, trials=3, **changes)]
    return factories.write(path, *trials)
