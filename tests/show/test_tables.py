"""A table is written once: what a column declares is what every renderer writes."""

import json
from pathlib import Path

import factories
import pytest
import reports
from consoles import printed

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import speedups, summarise
from tcbench.commands.export import formats as export
from tcbench.commands.report.build import build
from tcbench.commands.run import table as view
from tcbench.show import cells
from tcbench.show.document import fields
from tcbench.show.page.page import Figure
from tcbench.show.tables import RATE, SECONDS, Badge, Column, ConfigTable, Field, Table

COLUMNS: list[Column[float]] = [
    Column("cell", lambda _: "a|b", mark=lambda _: " *"),
    Column("images/s", lambda value: Interval(value, 0.9 * value, 1.1 * value) if value else None, RATE),
    Column("all-\nreduce", lambda value: value or None, SECONDS),
    Column("word", lambda _: Badge("held", "check")),
    Column("own", lambda _: Field("x", 2.0), on="page"),
]


def test_each_renderer_writes_the_same_values_in_its_way():
    rows = [40.0, 0.0]
    assert [line.split() for line in printed(Table(COLUMNS, [*rows, None])).splitlines()[2:]] == [
        ["a|b", "*", "40.0", "±", "10.0%", "40000", "ms", "held"],
        ["a|b", "*", "held"],
        [],
    ]
    page = Table(COLUMNS, rows)
    assert [column.name for column in page.heads] == ["cell", "images/s", "all-reduce", "word", "own"]
    assert [(field.text, field.key) for field in page.fields[0]] == [
        ("a|b *", None), ("40.0", 40.0), ("40000 ms", 40.0), ("", None), ("x", 2.0)
    ]  # fmt: skip
    assert [field.text for field in page.fields[1]] == ["a|b *", "", "", "", "x"]
    assert Table(COLUMNS[:2], rows[:1]).markdown(lambda text: text.replace("|", "\\|")) == [
        "| cell | images/s |", "| --- | ---: |", "| a\\|b * | 40.0 ± 10.0% |"
    ]  # fmt: skip


def test_a_new_column_of_a_run_is_on_the_console_and_the_page_in_json_and_in_exports(monkeypatch):
    columns, record = cells.columns, factories.make_record()
    new = Column("spread", lambda row: row.summary.images_per_s, RATE, key="spread")
    monkeypatch.setattr(cells, "columns", lambda summaries: (*columns(summaries), new))
    summaries = summarise([record])
    mean = summaries[0].images_per_s.value
    assert "spread" in printed(view.results_table(summaries, speedups(summaries)))
    [figure] = [block for block in build(reports.results([record])).sections[1].blocks if isinstance(block, Figure)]
    assert figure.table.fields[0][[head.name for head in figure.table.heads].index("spread")].key == mean
    [cell] = json.loads(view.summary_json("run", Path("r.jsonl"), summaries, speedups(summaries)))["cells"]
    assert cell["spread"]["value"] == mean
    [row] = json.loads(export.to_json([record], "cell"))["rows"]
    assert row["spread"] == mean and row["spread_low"] < mean < row["spread_high"]


def test_attributes_are_named_for_json_and_a_wrong_name_is_no_null():
    summary = summarise([factories.make_record()])[0]
    assert fields(summary, "status size=cell.batch_size") == {"status": "ok", "size": 4}
    assert fields(None, "low=cell.batch_size") == {"low": None}
    with pytest.raises(AttributeError):
        fields(summary, "state")


def test_a_narrow_console_breaks_a_configs_name_between_rungs():
    cells = [factories.make_cell(config=config, batch_size=8) for config in ("fp32", "bf16+dali+batched+nhwc+fused")]
    table = ConfigTable([Column("images/s", lambda _: Interval(70.0, 60.0, 80.0), RATE)], cells, cell=lambda cell: cell)
    assert printed(table, width=60).split("\n")[2].rstrip() == "       bf16+dali+batched+nhwc+fused  70.0 ± 14.3%"
    assert [line[7:27].rstrip() for line in printed(table, width=44).split("\n")[1:4]] == [
        "fp32",
        "bf16+dali+batched",
        " +nhwc+fused",
    ]


def table_of_two_networks() -> Table[cells.Row]:
    summaries = summarise(
        factories.make_record(config, cell=factories.make_cell(config, model=model), trial=trial, images_per_s=rate)
        for model in ("googlenet-aux", "resnet50")
        for config in ("fp32", "fp32+batched+nhwc+fused+static_graph", "bf16+batched+nhwc+fused+static_graph")
        for trial, rate in enumerate((100.0, 103.0, 160.0))
    )
    return view.results_table(summaries, speedups(summaries))


@pytest.mark.parametrize("width", [74, 76, 80])
def test_a_table_of_several_networks_is_cut_nowhere_on_a_narrow_console(width: int):
    text = printed(table_of_two_networks(), width=width)
    assert ("step" in text.splitlines()[0].split()) == (width == 80)
    assert ["3" in line.split() for line in text.splitlines()[1:6] if "MiB" in line] == [True] * 3
    assert {*text.split()} >= {"images/s", "vs", "fp32", "memory", "trials", "googlenet-aux", "static_graph"}
    assert {*text.split()} >= {"bf16+batched", "+nhwc+fused", "+static_graph"}


@pytest.mark.parametrize(("width", "shown"), [(74, []), (80, ["step"]), (132, ["step", "p99 step"])])
def test_spare_columns_are_left_out_one_by_one_the_last_first(monkeypatch, width, shown):
    columns = cells.columns
    p99 = Column[cells.Row]("p99 step", lambda row: row.summary.step_time_s, SECONDS, spare=True)
    monkeypatch.setattr(cells, "columns", lambda summaries: (*columns(summaries), p99))
    assert [column.name for column in table_of_two_networks().columns_at(width) if column.spare] == shown


@pytest.mark.parametrize(
    ("words", "width", "lines"),
    [
        ("by fp16+dali+batched, at 8", 14, ["by fp16+dali", "+batched, at 8"]),
        ("by fp16+dali+batched, at 8", 40, ["by fp16+dali+batched, at 8"]),
        ("numerics-20261121-145202.json", 18, ["numerics-20261121-", "145202.json"]),
        ("+static_graph", 8, ["+static_", "graph"]),
        ("fused+static_graph", 16, ["fused", "+static_graph"]),
        ("(torch.backends.cudnn)", 16, ["(torch.backends.", "cudnn)"]),
        ("漢字漢字漢字", 5, ["漢字", "漢字", "漢字"]),
    ],
)
def test_a_word_that_is_wider_than_its_column_is_broken_between_rungs(words: str, width: int, lines: list[str]):
    shown = printed(Table([Column[str]("", str)], [words], gap=0, header=None), width=width)
    assert [line.rstrip() for line in shown.splitlines()] == lines
