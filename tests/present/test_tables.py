"""A table is written once: what a column declares is what every renderer writes."""

from __future__ import annotations

import factories
import pytest
from rich.console import Console

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import speedups, summarise
from tcbench.present.document import fields
from tcbench.present.page import wording
from tcbench.present.page.page import Badge, Field
from tcbench.present.tables import RATE, SECONDS, Column, grid, markdown_lines
from tcbench.views.throughput import table as view

COLUMNS: list[Column[float | None]] = [
    Column("cell", lambda _: "a|b", mark=lambda _: " *"),
    Column("images/s", lambda value: value and Interval(value, 0.9 * value, 1.1 * value), RATE),
    Column("all-\nreduce", lambda value: value, SECONDS),
    Column("word", lambda _: Badge("held", "check")),
    Column("own", lambda _: Field("x", 2.0), on="page"),
]


def printed(table) -> list[str]:
    console = Console(width=132)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_each_renderer_writes_the_same_values_in_its_way():
    rows = [40.0, None]
    assert [line.split() for line in printed(grid(COLUMNS, [*rows, None]))[2:4]] == [
        ["a|b", "*", "40.0", "±", "10.0%", "40000", "ms", "held"],
        [],
    ]
    page = wording.table("caption", COLUMNS, rows, ("cell",))
    assert [column.name for column in page.columns] == ["cell", "images/s", "all-reduce", "word", "own"]
    assert [(column.numeric, column.key) for column in page.columns][:2] == [(False, "cell"), (True, "")]
    assert [(field.text, field.key) for field in page.rows[0]] == [
        ("a|b *", None), ("40.0", 40.0), ("40000 ms", 40.0), ("", None), ("x", 2.0)
    ]  # fmt: skip
    assert [field.text for field in page.rows[1]] == ["a|b *", "", "", "", "x"]
    assert markdown_lines(COLUMNS[:2], rows[:1], lambda text: text.replace("|", "\\|")) == [
        "| cell | images/s |", "| --- | ---: |", "| a\\|b * | 40.0 ± 10.0% |"
    ]  # fmt: skip


def test_a_new_column_of_a_run_is_on_the_console_and_on_the_page(monkeypatch):
    columns = view.columns
    new = Column("seed", lambda row: f"seed {row.summary.cell.seed}")
    monkeypatch.setattr(view, "columns", lambda summaries: (*columns(summaries), new))
    summaries = summarise([factories.make_record()])
    assert printed(view.results_table(summaries, speedups(summaries)))[1].endswith(f"seed {summaries[0].cell.seed}")
    row = view.Row(summaries[0], None)
    assert wording.table("caption", view.columns(summaries), [row]).rows[0][-1].text == f"seed {summaries[0].cell.seed}"


def test_attributes_are_named_for_json_and_a_wrong_name_is_no_null():
    summary = summarise([factories.make_record()])[0]
    assert fields(summary, "status size=cell.batch_size") == {"status": "ok", "size": 4}
    assert fields(None, "low=cell.batch_size") == {"low": None}
    with pytest.raises(AttributeError):
        fields(summary, "state")
