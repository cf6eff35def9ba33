"""Commands on a real pseudo-terminal: the screen that a user sees while they work, and the one that they leave."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pyte
import pytest
from command import start

from tcbench.show.streams import harmless

pytestmark = pytest.mark.long

LONG = "a-rung-whose-name-is-cut-off-at-eighty-columns"
HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\r\u202egnp"

STEP = f"""
import numpy as np
from tcbench import step as own


def open_session(cell):
    if "fails" in cell.rungs:
        raise ValueError({HOSTILE!r})
    a = np.ones((400, 400), np.float32)
    return own.step(lambda: a @ a, loss=lambda: 1.0)
"""

SCENARIO = f"""
schema = 1
title = "Products"
model.name = "product"
measure = {{ batch_sizes = [8], max_time_s = 60 }}
config = [
  {{ backend = "a_step:open_session", rungs = ["{LONG}"] }},
  {{ backend = "a_step:open_session", rungs = ["fails"] }},
  {{ backend = "a_step:open_session", rungs = ["fails", "again"] }},
]
"""

# The command as a shell starts it: the terminal is its own, so that Ctrl-C reaches it.
MAIN = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from tcbench.__main__ import main
"""

STAND_INS = f"""
import itertools, sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import factories
from tcbench.core.messages import Stepped
from tcbench.commands.gate import builds
from tcbench.commands.numerics.runner import NumericsRunner
from tcbench.run.runner import Runner

def train(runner, jobs):
    for steps in itertools.count():
        runner.listen(jobs[0], steps)
        time.sleep(0.01)
    yield

def run(runner, trials):
    for planned, trial in trials:
        if "fails" in planned.cell.rungs:
            yield factories.make_record(cell=planned.cell, trial=trial, status="failed", reason="why, " * 20)
            continue
        for steps in itertools.count():
            runner.listen(planned.cell, trial, Stepped("timed", steps, 0.1))
            time.sleep(0.01)

builds._probed = lambda build, option: build
NumericsRunner.run, Runner.run = train, run
"""
"""Neither trains nor measures, and says how far it is: a worker would take a second to start, and Chainer seconds."""

OWN = "\x1b\\[(\\d+(;\\d+)*m|\\?25[hl]|2K|1A)"
"""The only sequences that a command may write: colours, the cursor hidden and shown, a line taken back."""


class Terminal:
    """A command on a terminal, as an emulator shows it."""

    def __init__(
        self, folder: Path, *words: str, columns: int = 80, code: str = STAND_INS, environment: Any = None, **streams
    ):
        (folder / "a_step.py").write_text(STEP, "utf-8")
        (folder / "a_step.toml").write_text(SCENARIO, "utf-8")
        self.screen, self.written, self.progress = pyte.Screen(columns, 30), b"", ""
        self._feed = pyte.ByteStream(self.screen).feed
        self._controller, terminal = os.openpty()
        termios.tcsetwinsize(terminal, (30, columns))
        self._modes = termios.tcgetattr(terminal)
        self._process = start(
            folder,
            *words,
            python=("-c", f"{MAIN}{code}\nmain()"),
            environment={"TERM": "xterm-256color", "COLUMNS": "", **(environment or {})},
            start_new_session=True,
            **{"stdin": terminal, "stdout": terminal, "stderr": terminal, **streams},
        )
        os.close(terminal)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._controller)  # which ends what still runs
        self._process.wait(60)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def until(self, progress: str) -> None:
        """Look at every screen until the line of progress matches it."""
        deadline = time.monotonic() + 60
        while not re.fullmatch(progress, self.progress):
            assert self._read() and time.monotonic() < deadline, self.lines

    def interrupt(self) -> int:
        os.write(self._controller, b"\x03")
        return self.end()

    def end(self) -> int:
        """The exit code, once all is written and the terminal is as it was."""
        while self._read():
            pass
        cursor, text = self.screen.cursor, re.sub(OWN, "", self.written.decode("utf-8")).replace("\r", "")
        assert (self.progress, cursor.x, cursor.hidden, cursor.attrs) == ("", 0, False, self.screen.default_char)
        assert termios.tcgetattr(self._controller) == self._modes
        assert text == harmless(text)
        return self._process.wait(60)

    def _read(self) -> bool:
        """Take in what was written by now; False at the end. There is never more than one line of progress."""
        assert select.select([self._controller], [], [], 60)[0], self.lines
        try:
            written = os.read(self._controller, 1 << 16)
        except OSError:  # nobody has it open any more
            return False
        self.written += written
        self._feed(written)
        live = [line for line in self.lines if " ETA " in line and not line.startswith("[")]
        assert len(live) < 2, self.lines
        self.progress = "".join(live)
        return True


STEADY = ("./a_step.toml", "--config", LONG)
RUN = ("run", *STEADY, "--trials", "1")
FAILING = ("run", "./a_step.toml", "--config", "fails*", "--trials", "1")
NAME = f"a_step/{LONG}, batch size 8: "


@pytest.mark.parametrize(
    ("columns", "words", "progress"),
    [
        (80, RUN, rf"0/1 ETA \d.* a_step/{LONG[:20]}.*…"),
        (120, ("gate", *STEADY, "--base-python", sys.executable), rf"0/6 ETA \d.* {NAME}.*"),
        (120, ("profile", LONG, "./a_step.toml", "--tool", "ranges"), rf"0/1 ETA \d.* {NAME}.*"),
        (80, ("numerics",), r"\d+/\d\d+ ETA \d.* training steps"),
    ],
    ids=["run", "gate", "profile", "numerics"],
)
def test_progress_is_one_line_and_an_interrupt_leaves_a_clean_screen(tmp_path, columns, words, progress) -> None:
    with Terminal(tmp_path, *words, columns=columns) as terminal:
        terminal.until(progress)
        assert len(terminal.progress) <= columns - 2  # and a ^C
        assert terminal.interrupt() == 130
        assert any(line.startswith("interrupted") for line in terminal.lines)


@pytest.mark.parametrize("words", [RUN, ("numerics",)], ids=["run", "numerics"])
def test_columns_are_those_that_the_environment_says_and_words_are_cut_before_the_eta(tmp_path, words) -> None:
    with Terminal(tmp_path, *words, environment={"COLUMNS": "40", "NO_COLOR": "1"}) as terminal:
        terminal.until(r"\d+/\d+ ETA \d.*")
        assert len(terminal.progress) <= 38
        assert terminal.interrupt() == 130
        assert not re.search(rb"\x1b\[[\d;]*m", terminal.written)  # without colours


def test_what_a_step_says_acts_on_no_terminal(tmp_path) -> None:
    with Terminal(tmp_path, *FAILING, code="") as terminal:
        terminal.until(r"1/2 ETA .*")
        assert terminal.end() == 3
        assert " ".join(" ".join(terminal.lines).split()).count("failed: ValueError: \\x1b[2J\\x1b]0;title") == 4


def test_a_terminal_that_cannot_redraw_gets_a_line_a_trial_which_breaks_between_words(tmp_path) -> None:
    with Terminal(tmp_path, *FAILING, environment={"TERM": "dumb"}) as terminal:
        assert terminal.end() == 3
        shown = [line for line in terminal.written.decode().splitlines() if not line.startswith(("Next: ", "    "))]
        assert re.search(r"\[1/2\] a_step/fails, batch size 8: failed: .*\(ETA \d", " ".join(shown))
        assert max(map(len, shown)) <= 80
        assert b"\x1b" not in terminal.written


def test_progress_that_is_redirected_leaves_the_terminal_to_the_results(tmp_path) -> None:
    with (tmp_path / "progress").open("w") as file, Terminal(tmp_path, *FAILING, stderr=file) as terminal:
        assert terminal.end() == 3
        assert terminal.lines[0].startswith("batch config")
    progress = (tmp_path / "progress").read_text("utf-8")
    assert re.search(r"^\[1/2\] a_step/fails, batch size 8: failed: .*\(ETA \d", progress, re.MULTILINE)
    assert progress == harmless(progress)
