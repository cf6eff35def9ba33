"""Standard output and error that go away: never an internal error, and never a verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import factories
import pytest
from command import Shell

from tcbench.core import record

COMMANDS = [
    ("export", "run.jsonl"),
    ("export", "run.jsonl", "--format", "json"),
    ("compare", "run.jsonl", "slower.jsonl"),
    ("compare", "run.jsonl", "slower.jsonl", "--format", "markdown"),
    ("claims", "run.jsonl"),
    ("claims", "run.jsonl", "--format", "json"),
    ("explain", "run.jsonl"),
    ("history", "run.jsonl"),
    ("history", "run.jsonl", "--json"),
    ("plot", "run.jsonl", "-o", "chart.svg"),
    ("baseline", "list"),
    ("list",),
    ("doctor",),
    ("run", "--dry-run", "--data", "synthetic", "--device", "cpu"),
    ("compare", "--help"),
    ("--version",),
    ("--help",),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("output")
    for name, rate in (("run", 40.0), ("slower", 20.0)):
        records = factories.make_trials("fp32", images_per_s=rate) + factories.make_trials("fp16", images_per_s=rate)
        (folder / f"{name}.jsonl").write_bytes(b"".join(record.encode(one) + b"\n" for one in records))
    return folder


def start(folder: Path, words: tuple[str, ...], **files):
    return subprocess.Popen(
        [sys.executable, "-m", "tcbench", *words], cwd=folder, stdin=subprocess.DEVNULL, text=True, **files
    )


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_disk_is_an_error_of_one_line_and_a_closed_pipe_ends_quietly(folder, words):
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "wb") as full:
        on_full = start(folder, words, stdout=full, stderr=subprocess.PIPE)
        closed = start(folder, words, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    said = on_full.communicate(timeout=120)[1]
    assert (on_full.returncode, said.splitlines()[-1:]) == (
        2,
        ["tcbench: error: standard output cannot be written (No space left on device)"],
    )
    said = closed.communicate(timeout=120)[1]
    assert (closed.returncode, "rror" in said, "Exception" in said) == (141, False, False)


def test_without_standard_error_the_command_goes_on(folder):
    read, write = os.pipe()
    os.close(read)
    words = ("run", "--dry-run", "--data", "synthetic", "--device", "cpu", "--bs", "4")
    done = start(folder, words, stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    shown = done.communicate(timeout=120)[0]
    assert done.returncode == 0
    assert "fp32" in shown


def test_a_file_does_not_take_the_place_of_an_output_that_is_closed(folder):
    command = f"exec {sys.executable} -m tcbench plot run.jsonl -o closed.svg >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", command], cwd=folder, timeout=120).returncode == 0
    assert (folder / "closed.svg").read_text().rstrip().endswith("</svg>")


def test_an_interrupt_that_no_command_catches_is_said(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tcbench.show.catalogue.show", interrupted)
    done = Shell(tmp_path, capsys, monkeypatch)("list")
    assert (done.code, done.out, done.err) == (130, "", "\ninterrupted\n")
