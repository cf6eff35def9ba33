"""Throw-away git projects that hold a training step of one's own, by a clock of its own, for tests of the gate."""

import os
import subprocess
import sys
from pathlib import Path

from tcbench.run.runner import Runner

STEP = """
import itertools
import os
import random

from tcbench import step as own

PLANTED_S = 0.0


class Ticks:
    of = "device"

    def __init__(self):
        self.now_s, self.marks_s = 0.0, []

    def take(self, seconds):
        self.now_s += seconds * random.gauss(1, 0.01)

    def mark(self):
        self.marks_s.append(self.now_s)

    def read(self):
        marks_s, self.marks_s = self.marks_s, []
        return tuple(after - before for before, after in itertools.pairwise(marks_s))


def open_session(cell):
    clock = Ticks()

    def io():
        clock.take(0.005)

    def forward():
        planted_s = PLANTED_S + float(os.environ.get("PLANTED_S", 0))
        clock.take(0.007 + (planted_s if "deep" in cell.rungs else 0))

    def backward():
        clock.take(0.008)

    return own.step(io, forward, backward, loss=lambda: 1.0, clock=clock)
"""
"""A step takes about 20 ms of its own clock, whatever else the machine does; `planted(2)` makes that of configs with
`deep` a tenth longer."""

SCENARIO = """
schema = 1
title = "Sleeps"
model.name = "sleeper"

[measure]
batch_sizes = [1]
trials = 1
max_time_s = 0.3
profiled_steps = 9

[[config]]
backend = "my_step:open_session"
rungs = ["deep"]

[[config]]
backend = "my_step:open_session"
rungs = ["flat"]
"""


def git(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, **files: str) -> str:
    """Write files (their names' dots as `__`) and commit everything; the commit's id."""
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content, "utf-8")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a commit")
    return git(folder, "rev-parse", "HEAD")


def make(folder: Path) -> Path:
    """A project with one commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    commit(folder, my_step__py=STEP, my_step__toml=SCENARIO, __gitignore="results/\ncache/\n__pycache__/\n")
    return folder


def add_submodule(folder: Path, origin: Path, path: str) -> None:
    """Add a repository as a submodule, and commit."""
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(origin), path)
    commit(folder)


def planted(milliseconds: float) -> str:
    """The step with its forward phase longer."""
    return STEP.replace("PLANTED_S = 0.0", f"PLANTED_S = {milliseconds / 1000}")


def interpreter(path: Path, before: str = "", python: str = f'exec {sys.executable} "$@"') -> Path:
    """A script in an interpreter's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{before}\n{python}\n", "utf-8")
    path.chmod(0o755)
    return path


class OneByOne(Runner):
    """Runs stand-ins of trials: of those that would step in turns one after another, and counts them."""

    pairs = 0

    def in_turns(self, other, planned, trials):
        OneByOne.pairs += 1
        for place, runner in enumerate((self, other)):
            yield place, next(runner.run([(planned, trials[place])]))
