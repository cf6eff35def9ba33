"""`tcbench` inside the test's own process, and, where a signal or a stream is the point, in one of its own."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tcbench import commands as cli


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str


def tcbench(folder: Path, *words: str | Path, **environment: str) -> Done:
    """Run it in a folder, without the second that a process of its own takes: only `main` stands between this and a
    user's shell."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, _environment(folder, environment), clear=True),
        mock.patch.object(sys, "argv", ["tcbench", *map(str, words)]),
        mock.patch.object(sys.modules["__main__"], "__package__", ""),  # whether pytest or `python -m pytest` runs
        mock.patch("signal.signal", lambda *_: None),  # the handlers are pytest's
        mock.patch("gc.set_threshold", lambda *_: None),  # so that hundreds of figures do not pile up
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        cli.main()
    code = ended.value.code
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


def ended(folder: Path, *words: str | Path, code: int = 0, **environment: str) -> Done:
    """`tcbench`, held to its exit code."""
    done = tcbench(folder, *words, **environment)
    assert done.code == code, done
    return done


def next_steps(done: Done) -> list[list[str]]:
    """The words of the commands that a command offers to go on with, after its own name."""
    lines = [line.partition("   (")[0] for line in done.out.splitlines() if line.startswith("Next: ")]
    return [shlex.split(line.removeprefix("Next: tcbench ")) for line in lines]


def next_step(done: Done) -> list[str]:
    """The first of them; none where it offers none."""
    return next(iter(next_steps(done)), [])


def start(folder: Path, *words: str | Path, python: tuple[str, ...] = ("-m", "tcbench"), **options: Any):
    """The same command in a process of its own; `options` are Popen's."""
    environment = _environment(folder, options.pop("environment", {}))
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, *python, *map(str, words)]
    return subprocess.Popen(command, cwd=folder, env=environment, **{**streams, **options})


def finish(process: subprocess.Popen[str], within_s: float = 600.0, code: int | None = None) -> Done:
    """Wait until a process ends, with that exit code if one is given."""
    out, err = process.communicate(timeout=within_s)
    done = Done(process.returncode, out, err)
    assert code in (None, done.code), done
    return done


def _environment(folder: Path, changes: dict[str, str]) -> dict[str, str]:
    """A console of 100 columns and a cache of the folder's own; what a CI service sets must not reach a test."""
    inherited = {name: value for name, value in os.environ.items() if name != "GITHUB_STEP_SUMMARY"}
    return {**inherited, "TCBENCH_CACHE": str(folder / "cache"), "COLUMNS": "100", **changes}
