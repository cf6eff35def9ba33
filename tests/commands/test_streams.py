"""Control characters from records and traces reach a terminal as escapes, and errors stay short."""

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import factories
import pytest
from command import start, tcbench

from tcbench.core.text import plain
from tcbench.core.timeline import Span, Timeline
from tcbench.show import streams, tables
from tcbench.show.console import make_console
from tcbench.show.streams import harmless
from tcbench.tracing import perfetto

ACTIVE = "\x1b[2J\x9b31m\u202egnp\x07\r\x7f\u2028\U000e0041\x00"


def acts(text: str) -> list[str]:
    return sorted(set(text) & set(ACTIVE) - set("[2J31mgnp"))


def test_escapes_stay_within_json_and_everything_else_is_untouched() -> None:
    assert json.loads(harmless(json.dumps("\\" + ACTIVE, ensure_ascii=False))) == "\\" + ACTIVE
    assert acts(harmless(ACTIVE)) == []
    ordinary = "fp32 + 畳み込み\u3000×\u00a0±\té 👩 \n│ 12\u202f% ½ عربي"
    assert harmless(ordinary) == ordinary


def test_a_console_keeps_its_colours_and_shows_those_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    console = make_console()
    console._force_terminal, console._color_system = True, tables.Console(color_system="standard")._color_system
    console.print(tables.Text(f"a{ACTIVE}b", style="red"), soft_wrap=True)
    written = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert written.startswith("\x1b[31ma\\u001b[2J\\u009b31m\\u202egnp")
    assert acts(written.replace("\x1b[31m", "", 1).replace("\x1b[0m", "", 1)) == []


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "trace.json"),
        ("explain", "r.jsonl", "--details"),
        ("explain", "r.jsonl", "--json"),
        ("export", "r.jsonl", "--format", "json"),
        ("export", "r.jsonl", "--format", "csv"),
        ("compare", "r.jsonl", "again.jsonl"),
        ("compare", "r.jsonl", "again.jsonl", "--format", "markdown"),
        ("history", "r.jsonl"),
        ("claims", "r.jsonl"),
        ("plot", "r.jsonl", "--config", "none"),
        ("baseline", "set", "main", "r.jsonl", "--force"),
        ("baseline", "list"),
        ("baseline", "show", "main"),
        ("timeline", f"no {ACTIVE.strip(chr(0))} file.json"),
    ],
)
def test_nothing_that_a_file_says_acts_on_a_terminal(tmp_path: Path, words: tuple[str, ...]) -> None:
    cell = factories.make_cell(f"fp32{ACTIVE}", scenario=ACTIVE)
    environment = factories.make_environment(f"m{ACTIVE}", f"AMD{ACTIVE}", commit=ACTIVE)
    failed = factories.make_record(cell=factories.make_cell("d"), status="failed", reason=f"why {ACTIVE}")
    for name, trial in (("r.jsonl", 0), ("again.jsonl", 1)):
        ok = factories.make_record(cell=cell, environment=environment, run_id=ACTIVE, trial=trial, started_at=ACTIVE)
        factories.write(tmp_path / name, ok, failed)
    if words[0] == "baseline":
        assert tcbench(tmp_path, "baseline", "set", "main", "r.jsonl").code == 0
    spans = [Span(0.0, 1.0, "host", "step", ACTIVE, 1), Span(0.0, 1.0, "host", "phase", ACTIVE, 1, ACTIVE)]
    timeline = Timeline(ACTIVE, "cpu", ACTIVE, 4, "ranges", [ACTIVE], spans)
    perfetto.write([timeline], tmp_path / "trace.json")
    done = tcbench(tmp_path, *words)
    assert done.out or done.err
    assert acts(done.out + done.err) == []
    if "json" in words or "--json" in words:
        assert plain(cell.config) in set(strings(json.loads(done.out)))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def test_a_line_on_standard_error_is_no_longer_than_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    streams.guard()
    print("first", "x" * 5_000_000, file=sys.stderr)
    print("second\n" + "y" * 3_000, file=sys.stderr)
    print("z" * 5_000)
    shown = capsys.readouterr()
    assert [len(line) for line in shown.err.splitlines()] == [5 + 1 + 4001, 6, 3000]
    assert len(shown.out) == 5_001


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["0", "-5", os.fsdecode("²".encode()), "abc", "", "1", "100", "9" * 30])
def test_no_width_that_a_variable_names_ends_a_command(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", columns)
    streams.guard()
    console = make_console()
    console.say("text of several words")
    assert 80 <= console.width < 10_000
    assert console.width == 100 or columns != "100"


@pytest.mark.parametrize("variables", [{"FORCE_COLOR": "1"}, {"FORCE_COLOR": "0"}, {"TTY_COMPATIBLE": "1"}])
def test_a_variable_makes_no_terminal_of_a_file(tmp_path: Path, variables: dict[str, str]) -> None:
    factories.write(tmp_path / "r.jsonl", factories.make_record("fp32"))
    plain_text = tcbench(tmp_path, "explain", "r.jsonl").out
    written = tcbench(tmp_path, "explain", "r.jsonl", **variables).out
    assert ("\x1b" in written) == (variables == {"FORCE_COLOR": "1"})
    assert re.sub(r"\x1b\[[0-9;]*m", "", written) == plain_text
    assert not re.search(r"\x1b\[[0-9;?]*[^0-9;?m]", written)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_a_program_reads_is_utf_8_on_any_standard_output(tmp_path: Path, encoding: str) -> None:
    factories.write(tmp_path / "r.jsonl", factories.make_record(cell=factories.make_cell(model="層融合")))
    variables = {"PYTHONIOENCODING": encoding}
    for words in [("export", "r.jsonl", "--format", "json"), ("explain", "r.jsonl", "--json"), ("explain", "r.jsonl")]:
        process = start(tmp_path, *words, environment=variables, text=False)
        out, _ = process.communicate(timeout=600)
        assert ("層融合".encode() in out) == (words[-1] != "r.jsonl"), out
