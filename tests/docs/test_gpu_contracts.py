"""docs/gpu-contracts.md has a row for every call into a library that only a GPU can exercise, and no others."""

import re
from pathlib import Path

import pytest
from foreign_calls import ROOT, foreign_calls

PAGE = ROOT / "docs" / "gpu-contracts.md"
HEADER = "| our call | its contract | what it requires | held by |"
UNPROVEN = "a GPU alone"
"""The entry of the last column for calls that no test can check without a GPU."""


def rows_of(page: Path) -> list[list[str]]:
    """The cells of all rows of a page's tables of calls."""
    rows, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        inside = line == HEADER or (inside and line.startswith("|"))
        if inside and line != HEADER and not line.startswith("| ---"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def call_names(cell: str) -> set[str]:
    """The last names of the calls in backticks: `stream.begin_capture` is begin_capture."""
    return {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", cell)}


ROWS = rows_of(PAGE)


@pytest.mark.long
def test_every_foreign_call_has_a_row_and_no_row_speaks_of_a_call_that_is_made_no_more() -> None:
    calls = {call.name: f"{call.written} ({call.place})" for call in foreign_calls()}
    with_a_row = {name for row in ROWS for name in call_names(row[0])}
    assert [written for name, written in calls.items() if name not in with_a_row] == []
    assert sorted(with_a_row - calls.keys()) == []


def check_row(row: list[str]) -> None:
    call, contract, requires, held_by = row
    assert call_names(call) and contract and requires
    tests = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", held_by)
    assert tests or UNPROVEN in held_by
    for path, name in tests:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8") if name else (ROOT / path).exists()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_where_its_contract_stands_and_which_test_holds_it(row: list[str]) -> None:
    check_row(row)
