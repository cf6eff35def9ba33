"""Notes under a table, and lines of text on a terminal."""

import io

import pytest

from tcbench.show.next_steps import NextStep
from tcbench.show.notes import MOST_LINES, Caution, notes_that_fit, wrap_lines
from tcbench.show.tables import Screen

LONG = "a note of " + "several " * 12 + "words"


def test_a_text_is_broken_between_words_and_goes_on_indented():
    lines = wrap_lines(f"  {LONG}, fp32+dali+batched, {'x' * 50}", 40)
    assert all(line.startswith("    ") for line in lines[1:]) and lines[0].startswith("  a note")
    assert " ".join(" ".join(lines).split()) == f"{LONG}, fp32+dali+batched, {'x' * 50}"
    assert [line for line in lines if len(line) > 40] == ["    " + "x" * 50]
    assert wrap_lines("one\ntwo", 40) == ["one", "two"] and wrap_lines("", 40) == [""]


@pytest.mark.parametrize(
    ("notes", "columns", "shown"),
    [
        ([], 80, []),
        (["a", "b"], 80, ["a", "b"]),
        (["a", "b", "c"], 80, ["a", "b (1 more: --details)"]),
        (["a", "b", Caution("c"), Caution("d")], 80, ["c", "d (2 more: --details)"]),
        (["a", LONG, "c"], 80, ["a (2 more: --details)"]),
        ([LONG, "b"], 80, [f"{LONG} (1 more: --details)"]),
        ([LONG, LONG], 132, [LONG, LONG]),
    ],
)
def test_so_many_notes_are_shown_as_two_lines_hold_cautions_first(notes, columns, shown):
    assert notes_that_fit(notes, columns) == shown
    assert sum(len(wrap_lines(note, columns)) for note in shown) <= MOST_LINES


def test_a_console_shows_all_notes_on_request_and_breaks_no_command():
    def printed(**options):
        console = Screen(file=io.StringIO(), width=40, **options)
        console.notes(["a", "b", LONG])
        console.offer([NextStep(("run", "--config", f"fp32+{n}" + "+x" * 20), "why") for n in (1, 2, 1, 3, 4)])
        return console.file.getvalue().splitlines()

    commands = [f"Next: tcbench run --config fp32+{n}" + "+x" * 20 for n in (1, 2, 3)]
    assert printed() == ["a", "b (1 more: --details)", *commands]
    assert printed(columns=40, details=True) == ["a", "b", *wrap_lines(LONG, 40), *commands]
