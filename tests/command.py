"""The command line inside the test's process: what it printed and how it ended, without the second that a process of
its own takes. Only `main` itself is between this and a user's shell."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tcbench import cli


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Shell:
    """Runs `tcbench` in a folder."""

    folder: Path
    capture: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch

    def __call__(self, *words: str | Path) -> Done:
        self.patch.chdir(self.folder)
        self.patch.setattr(sys, "argv", ["tcbench", *map(str, words)])
        self.patch.setattr("signal.signal", lambda *_: None)
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = self.capture.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Done(code, shown.out, shown.err)
