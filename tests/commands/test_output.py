"""Standard output and error that go away: never an internal error, and never a verdict. What -o names is no input."""

import os
import subprocess
import sys
from pathlib import Path

import factories
import histories
import hostile
import pytest
import typer
from command import ended, finish, start, tcbench

from tcbench.commands import app

COMMANDS = [("export", "run.jsonl"), ("--help",)]
"""Raw text, and what Typer writes."""

OTHERS = [
    ("compare", "run.jsonl", "slower.jsonl"),
    ("plot", "run.jsonl", "-o", "chart.svg"),
    ("claims", "run.jsonl", "--format", "json"),
    ("export", "run.jsonl", "--format", "json"),
    ("compare", "run.jsonl", "slower.jsonl", "--format", "markdown"),
    ("claims", "run.jsonl"),
    ("explain", "run.jsonl"),
    ("history", "run.jsonl"),
    ("history", "run.jsonl", "--json"),
    ("baseline", "list"),
    ("list",),
    ("doctor",),
    ("run", "--dry-run", "--data", "synthetic", "--device", "cpu"),
    ("compare", "--help"),
    ("--version",),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("output")
    for name, rate in (("run", 40.0), ("slower", 20.0)):
        records = factories.make_trials("fp32", images_per_s=rate) + factories.make_trials("fp16", images_per_s=rate)
        factories.write(folder / f"{name}.jsonl", *records)
    return folder


@pytest.mark.parametrize(
    "words", [*COMMANDS, *(pytest.param(words, marks=pytest.mark.slow) for words in OTHERS)], ids=" ".join
)
def test_a_full_disk_is_an_error_of_one_line_and_a_closed_pipe_ends_quietly(folder, words):
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "wb") as full:
        on_full = start(folder, *words, stdout=full)
        closed = start(folder, *words, stdout=write)
    os.close(write)
    done = finish(on_full)
    message = "tcbench: error: standard output cannot be written (No space left on device)"
    assert (done.code, done.err.splitlines()[-1:]) == (2, [message])
    done = finish(closed)
    assert (done.code, "rror" in done.err, "Exception" in done.err) == (141, False, False)


def test_without_standard_error_the_command_goes_on(folder):
    read, write = os.pipe()
    os.close(read)
    words = ("run", "--dry-run", "--data", "synthetic", "--device", "cpu", "--bs", "4")
    process = start(folder, *words, stderr=write)
    os.close(write)
    done = finish(process, code=0)
    assert "fp32" in done.out


@pytest.mark.long
def test_a_file_does_not_take_the_place_of_an_output_that_is_closed_and_what_is_not_shown_is_an_error(folder):
    command = f"exec {sys.executable} -m tcbench plot run.jsonl -o closed.svg >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", command], cwd=folder, timeout=600).returncode == 2
    assert (folder / "closed.svg").read_text().rstrip().endswith("</svg>")


def test_an_interrupt_that_no_command_catches_is_said(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tcbench.commands.list.table.show", interrupted)
    done = tcbench(tmp_path, "list")
    assert (done.code, done.out, done.err) == (130, "", "\ninterrupted\n")


WRITERS = {
    "compare": ("x.json", "{}", "other.jsonl", "--format", "json"),
    "diff": ("x.svg", "{}", "--config", "fp32", "--to", "fp16"),
    "export": ("x.jsonl", "{}"),
    "gate": ("x.toml", "{}", "--base", "HEAD"),
    "history": ("x.svg", "{}"),
    "plot": ("x.svg", "{}"),
    "report": ("x.html", "{}"),
    "roofline": ("x.svg", "{}"),
    "timeline": ("x.svg", "{}"),
}
"""Every command with -o: a name that it would write, and its words; {} is an input."""


def test_every_command_that_writes_a_file_is_here():
    commands = typer.main.get_command(app).commands
    assert WRITERS.keys() == {
        name for name in commands if any("-o" in parameter.opts for parameter in commands[name].params)
    }


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("as_link", [False, True])
def test_no_command_writes_onto_what_it_reads(folder, tmp_path, name, as_link):
    output, *words = WRITERS[name]
    for file in ("run.jsonl", "slower.jsonl"):
        (tmp_path / file.replace("slower", "other")).write_bytes((folder / file).read_bytes())
    source = tmp_path / ("timeline.json.gz" if name == "timeline" else "run.jsonl")
    if name == "timeline":
        hostile.trace(source)
    if as_link:
        (tmp_path / output).symlink_to(source)
    else:
        source = source.rename(tmp_path / output)
    before = source.read_bytes()
    done = tcbench(tmp_path, name, *(word.replace("{}", source.name) for word in words), "-o", output)
    message = f"tcbench: error: -o {output}: this command reads it; name another file"
    assert (done.code, done.err.splitlines()[-1]) == (2, message)
    assert source.read_bytes() == before


@pytest.mark.parametrize("name", sorted({*WRITERS} - {"gate"}))  # which writes as `compare` does: test_gate
@pytest.mark.usefixtures("ceilings")
def test_a_hyphen_names_standard_output_and_all_else_is_printed_to_standard_error(folder, tmp_path, capfdbinary, name):
    hostile.trace(tmp_path / "timeline.json.gz")
    factories.write(tmp_path / "history.jsonl", *histories.over_commits([40, 36]))
    (tmp_path / "other.jsonl").write_bytes((folder / "slower.jsonl").read_bytes())
    source = {"history": "history.jsonl", "timeline": "timeline.json.gz"}.get(name, str(folder / "run.jsonl"))
    done = tcbench(tmp_path, name, *(word.replace("{}", source) for word in WRITERS[name][1:]), "-o", "-")
    begins = {"compare": b"{", "export": b"machine,", "report": b"<!doctype html>"}.get(name, b"\x89PNG")
    assert capfdbinary.readouterr().out.startswith(begins)
    assert (done.code, done.out) == (1 if name == "compare" else 0, "")
    assert "wrote" not in done.err
    assert not [*tmp_path.glob("-*"), *tmp_path.glob("*.png"), *tmp_path.glob("*.html")]


@pytest.mark.parametrize("words", [("plot",), ("export", "--format", "parquet")], ids=" ".join)
def test_a_terminal_is_sent_no_picture_and_no_parquet(folder, tmp_path, monkeypatch, words):
    monkeypatch.setattr("os.isatty", lambda number: number == 1)
    done = ended(tmp_path, words[0], str(folder / "run.jsonl"), *words[1:], "-o", "-", code=2)
    assert (done.out, done.err.count("\n")) == ("", 1) and "name a file" in done.err


@pytest.mark.parametrize("words", [(), ("results",), ("cpu-20250102-030405",)], ids=["the newest", "a folder", "an id"])
def test_what_is_read_without_being_named_is_not_written_onto_either(folder, tmp_path, words):
    run = tmp_path / "results" / "m" / "cpu-20250102-030405.jsonl"
    run.parent.mkdir(parents=True)
    run.write_bytes((folder / "run.jsonl").read_bytes())
    done = tcbench(tmp_path, "export", *words, "-o", run.relative_to(tmp_path))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert run.read_bytes() == (folder / "run.jsonl").read_bytes()


def test_the_trials_beside_a_report_are_not_written_onto_its_input(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tcbench.show.page.settings.MOST_TRIALS", 0)
    monkeypatch.setattr("tcbench.commands.report.trials.MOST_TRIALS", 0)
    source = tmp_path / "report-trials.csv"
    source.write_bytes((folder / "run.jsonl").read_bytes())
    ended(tmp_path, "report", source.name, "--title", "x" * 300, "-o", "report.html", code=2)
    assert source.read_bytes() == (folder / "run.jsonl").read_bytes()
