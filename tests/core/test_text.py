"""Strings that anyone may have written are safe to show once they are read."""

import json
import os
import subprocess
from typing import Any

import factories
import hostile
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.core import record
from tcbench.core.text import LONGEST, cleaned, may_need_cleaning, plain, shell_line
from tcbench.core.timeline import Span, Timeline

VALUES = st.recursive(
    st.text() | st.integers() | st.none() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.text())
def test_a_plain_text_is_one_printable_line(text: str) -> None:
    assert plain(text).isprintable()
    assert all(line.isprintable() for line in plain(text, lines=True).split("\n"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fp16+dali", "fp16+dali"),
        ("日本 é", "日本 é"),
        ("a\nb\tc", "a b c"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202egnp", "\\u202egnp"),
        ("\x00", "\\x00"),
        ("x" * 5_000_000, "x" * LONGEST + "…"),
    ],
)
def test_what_cannot_be_printed_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_log_keeps_its_lines_and_no_other_field_its_length() -> None:
    value = {"log": "a\nb\x1b" + "x" * LONGEST, "reason": "x" * (LONGEST + 9)}
    assert cleaned(value) == {"log": "a\nb\\x1b" + "x" * LONGEST, "reason": "x" * LONGEST + "…"}


@given(VALUES, st.booleans())
def test_no_line_that_needs_cleaning_passes_the_quick_look(value: Any, ascii_only: bool) -> None:
    line = json.dumps({"a": value}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    if not may_need_cleaning(line):
        read = json.loads(line)
        assert cleaned(read) == read


def test_usual_records_pass_the_quick_look_and_long_strings_do_not() -> None:
    line = record.encode(factories.make_record("fp32"))
    assert not may_need_cleaning(line + b"\n")
    assert not may_need_cleaning(line.replace(b'"fp32"', '"畳"'.encode()))
    assert not may_need_cleaning(b'{"samples": [%s]}' % b",".join([b"0.125"] * LONGEST))
    assert may_need_cleaning(line.replace(b'"fp32"', b'"%s"' % (b"x" * (LONGEST + 1))))


PLACES = [("cell", "config"), ("run_id",), ("environment", "machine"), ("gpu", "state", "driver")]


@pytest.mark.parametrize("place", PLACES)
def test_a_record_that_was_read_holds_nothing_that_a_terminal_would_act_on(place: tuple[str, ...]) -> None:
    line = json.dumps(hostile.changed(hostile.valid(), [(place, hostile.ACTIVE)])).encode()
    for decode in (record.decode, record.RecordDecoder().decode):
        value = json.loads(record.encode(decode(line)))
        for key in place:
            value = value[key]
        assert value == plain(hostile.ACTIVE)


def test_a_timeline_holds_nothing_that_a_terminal_would_act_on() -> None:
    text = hostile.ACTIVE
    spans = [Span(0.0, 1.0, "host", "step", text, 0), Span(0.0, 1.0, "host", "phase", text, 0, text)]
    timeline = Timeline(text, text, text, 4, "ranges", [text], spans)
    names = [timeline.label, timeline.device, timeline.device_name, *timeline.phases]
    names += [name for span in timeline.spans for name in (span.name, span.phase) if name is not None]
    assert set(names) == {plain(text)}


@pytest.mark.parametrize("name", ["plain", "two words", "it's", "caf\udce9 'x'\\", "a\nb"])
def test_a_shell_takes_a_command_line_as_its_words_also_where_a_name_is_no_text(name: str) -> None:
    line = shell_line(["printf", "%s", name])
    assert line.isprintable()
    assert subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, check=True).stdout == os.fsencode(name)
