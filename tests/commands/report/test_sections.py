"""The sections of the report as data; test_in_browser.py tests them in a browser."""

import dataclasses
import html
import re

import factories
import msgspec
import pytest
import reports
import timelines

from tcbench.analysis.compare import compare
from tcbench.commands.explain.chart import MOST_PHASES
from tcbench.commands.plot import ladder_chart as rungs
from tcbench.commands.report import environment, trials
from tcbench.commands.report.build import Compared, build
from tcbench.core.record import PhaseTimes
from tcbench.show.page import drawings
from tcbench.show.page import settings as page_settings
from tcbench.show.page.page import Data, FactList, Figure, Heading, Page, Points, Prose


def blocks(results, section, kind=None):
    page = results if isinstance(results, Page) else build(results)
    [blocks] = [candidate.blocks for candidate in page.sections if candidate.id == section]
    return [block for block in blocks if kind is None or isinstance(block, kind)]


def drawn(figure):
    """Every text in a chart."""
    return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]+)</text>", figure.drawn.svg)]


def tooltips(figure):
    return [html.unescape(text) for text in re.findall(r"<title>([^<]+)</title>", figure.drawn.svg)]


def texts(table):
    """Each row's texts by the names of their columns."""
    names = [column.name for column in table.heads]
    return [dict(zip(names, (field.words for field in row), strict=True)) for row in table.fields]


def cut(rows, *names):
    """The texts of these columns, row by row."""
    return [[row[name] for name in names] for row in rows]


def test_a_row_has_its_number_its_factor_and_is_bold_where_it_is_the_best():
    [figure] = blocks(reports.results(reports.ladders(5, sizes=(4,))), "throughput", Figure)
    rows = texts(figure.table)
    assert cut(rows, "config", "status", "images/s")[0] == ["fp32", "ok", "37.5"] and "37.5" in drawn(figure)
    strong = [{field.words for field in row if field.strong} for row in figure.table.fields]
    [best] = [row for row, words in zip(rows, strong, strict=True) if row["config"] in words]
    assert cut([best], "config", "vs fp32") == [["fp32+dali+batched+nhwc+fused+static_graph", "1.74×"]]


def test_the_title_is_the_model_and_the_device_or_what_was_asked_for():
    assert build(reports.machines(1)).title == "resnet50 training on 4 devices"
    assert build(reports.results([factories.make_record()], title="Ours\n today")).title == "Ours today"
    assert build(reports.results([factories.make_record(status="skipped")])).title == "resnet50 training"


# -- throughput ----------------------------------------------------------------------------------------------------


def test_an_interval_without_an_end_has_no_infinity():
    record = factories.make_record(noise=3.0)
    [figure] = blocks(reports.results([record]), "throughput", Figure)
    assert "inf" not in str(texts(figure.table)) + figure.drawn.svg.replace("inferior", "")


def test_many_configs_make_a_chart_that_scrolls():
    [figure] = blocks(reports.many_configs(1), "throughput", Figure)
    assert figure.drawn.wide


def test_a_ladder_ends_in_all():
    [figure] = blocks(reports.results(reports.ladders(5, sizes=(4,))), "rungs", Figure)
    words = drawn(figure)
    assert {"fp32", "+ dali", "+ batched", "+ nhwc + fused", "+ static_graph", "total"} <= set(words)
    assert any(word.endswith(" 1.74×") for word in words)


# -- rungs ---------------------------------------------------------------------------------------------------------


def test_a_rung_that_did_not_run_credits_nobody():
    records = [
        *factories.make_trials("fp32", images_per_s=30.0),
        factories.make_record("fp32+dali", status="crashed"),
        *factories.make_trials("fp32+dali+batched", images_per_s=60.0),
    ]
    [figure] = blocks(reports.results(records), "rungs", Figure)
    assert "crashed" in drawn(figure)
    _, crashed, batched = texts(figure.table)
    assert cut([crashed], "adds", "factor", "before", "after") == [["+ dali", "", "30.0", "crashed"]]
    assert batched["adds"] == "+ dali + batched" and batched["factor"] in ("1.99×", "2.00×", "2.01×")


def test_a_ladder_of_which_only_the_base_ran_is_none():
    records = [factories.make_record(), factories.make_record("fp32+dali", status="oom")]
    assert "rungs" not in [section.id for section in build(reports.results(records)).sections]


def test_two_ladders_of_one_base_have_names_of_their_own():
    configs = ("fp32", "fp32+dali", "fp32+batched")
    records = [record for config in configs for record in factories.make_trials(config, trials=2)]
    [figure] = blocks(reports.results(records), "rungs", Figure)
    assert {"fp32+dali ladder", "fp32+batched ladder"} <= set(drawn(figure))
    assert {row["ladder"] for row in texts(figure.table)} == {"fp32+dali", "fp32+batched"}


def test_of_many_ladders_the_longest_are_drawn_and_the_table_has_all(monkeypatch):
    monkeypatch.setattr(rungs, "MOST_LADDERS", 1)
    configs = ("fp16", "fp16+dali", "fp32", "fp32+dali", "fp32+dali+batched")
    records = [record for config in configs for record in factories.make_trials(config, trials=2)]
    [figure] = blocks(reports.results(records), "rungs", Figure)
    assert [text for text in drawn(figure) if text.endswith("ladder")] == ["fp32 ladder"]
    assert "The longest 1 of 2 ladders are drawn; the table has all of them." in figure.notes
    assert len(figure.table.rows) == 5


# -- claims, bottlenecks -------------------------------------------------------------------------------------------


def test_a_scenario_without_claims_has_no_section():
    records = [factories.make_record()]
    cards = [dataclasses.replace(card, claims=()) for card in reports.cards(records)]
    ids = [section.id for section in build(reports.results(records, cards=tuple(cards))).sections]
    assert "claims" not in ids


def test_a_cell_without_a_profiled_pass_says_so():
    bare = factories.make_record("fp16", measurement=factories.make_measurement(phases=()))
    [figure] = blocks(reports.results([factories.make_record(), bare]), "bottlenecks", Figure)
    assert "no profiled pass" in drawn(figure)


# -- timelines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("day", "noted"), [("2025-01-02", False), ("2024-11-20", True)])
def test_a_timeline_of_another_session_than_the_cells_beside_it_says_so(day, noted):
    cell = factories.make_cell("fp16", 64, device="cuda:0")
    environment = factories.make_environment(device_name=timelines.V100)
    timeline = timelines.make_timeline(timelines.step(0, 1), timelines.phase("io", 0, 1), timelines.kernel(0, 1))
    run = factories.make_record(cell=cell, images_per_s=64.0, environment=environment)
    profiled = dataclasses.replace(timeline, record=msgspec.structs.replace(run, started_at=f"{day}T09:00:00+00:00"))
    [figure] = blocks(reports.results([run], timelines=(profiled,)), "timelines", Figure)
    assert any("fp16, batch size 64: profiled 2024-11-20 at 64.0 images/s" in note for note in figure.notes) == noted


# -- comparison ----------------------------------------------------------------------------------------------------


def compared(base, current, metrics=("throughput",)):
    return reports.results(current, compared=Compared(compare(base, current, metrics), "before"))


def test_a_comparison_too_large_for_a_chart_has_its_table(monkeypatch):
    monkeypatch.setattr("tcbench.commands.compare.chart.MAX_ROWS", 3)
    [data] = blocks(reports.full(), "comparison", Data)
    assert len(data.table.rows) == 25
    assert data.notes == ("25 cells do not fit in one chart (at most 3); compare fewer configs",)


def test_one_trial_a_side_has_a_table_and_no_chart():
    page_results = compared([factories.make_record(run_id="before")], [factories.make_record()])
    assert not blocks(page_results, "comparison", Figure)
    [data] = blocks(page_results, "comparison", Data)
    [row] = texts(data.table)
    assert row["verdict"] == "inconclusive"
    assert "at least two trials per side are needed" in row["remarks"]


def test_a_comparison_by_several_metrics_names_each_and_writes_it_in_its_unit():
    before = factories.make_trials()
    double = [msgspec.structs.replace(r.measurement, peak_memory_bytes=1200 * 2**20) for r in before]
    after = [msgspec.structs.replace(r, measurement=m) for r, m in zip(before, double, strict=True)]
    page = build(compared(before, after, ("throughput", "memory")))
    lead = "".join(piece.text for piece in blocks(page, "comparison", Prose)[0].paragraphs[0])
    assert "throughput is 1.00× the base's" in lead and "memory is 2.00× the base's" in lead
    [figure] = blocks(page, "comparison", Figure)
    assert 'aria-label="Throughput and memory against before.' in figure.drawn.svg
    assert cut(texts(figure.table), "metric", "verdict", "base", "current") == [
        ["throughput (images/s)", "pass", "40.0", "40.0"],
        ["memory", "regression", "600 MiB", "1.17 GiB"],
    ]
    [points] = blocks(page, "comparison", Points)
    assert points.items[0][1][1].text == ": fp32, batch size 4 (memory)"


# -- environment, trials -------------------------------------------------------------------------------------------


def test_what_trials_of_one_machine_do_not_agree_on_stands_side_by_side():
    decoded = factories.make_measurement(decoding="on the GPU")
    other = factories.make_environment(os="b")
    records = [factories.make_record(measurement=decoded), factories.make_record(trial=1, environment=other)]
    [facts, settings, *_] = blocks(reports.results(records), "environment", FactList)
    assert dict(settings.pairs)["decoding"] == "on the GPU"
    assert dict(facts.pairs)["system"] == "Debian GNU/Linux 12 (bookworm), kernel 6.1.0; b, kernel 6.1.0"


def test_commits_stand_in_one_list_behind_their_version():
    code = [("0.1.0", "abc", None), ("0.2.0", None, "p"), ("0.1.0", "def", "q+"), ("0.1.0", "abc", "p")]
    records = [
        factories.make_record(
            trial=trial, environment=factories.make_environment(tcbench=version, commit=commit, project_commit=project)
        )
        for trial, (version, commit, project) in enumerate(code)
    ]
    [facts, *_] = blocks(reports.results(records), "environment", FactList)
    values = dict(facts.pairs)
    assert values["tcbench"] == "0.1.0 at abc, def; 0.2.0"
    assert values["project"] == "at p, q+"


def test_a_machine_that_is_unknown():
    [facts, *_] = blocks(reports.results([factories.make_record(status="skipped")]), "environment", FactList)
    assert facts.pairs == (("machine", "unknown: no trial recorded it"),)


def test_a_trial_tells_what_was_counted():
    times_s = (9.0, 0.1, 0.2, 0.1, 0.1, 0.1) * 2  # the first of each block is not counted
    measurement = factories.make_measurement(times_s, warmup_settled=False, last_loss=float("6.5"))
    record = factories.make_record(measurement=measurement)
    [data] = blocks(reports.results([record]), "trials", Data)
    [row] = texts(data.table)
    assert (row["images/s"], row["mean step"], row["median step"]) == ("33.3", "120 ms", "100 ms")
    assert (row["counted steps"], row["warm-up steps"], row["last loss"]) == ("10", "4 *", "6.500")


def test_of_many_trials_the_page_shows_the_last_and_names_the_file_of_all(monkeypatch):
    monkeypatch.setattr(trials, "MOST_TRIALS", 3)
    records = factories.make_trials("fp32", trials=4)
    few = dataclasses.replace(reports.results(records[1:]), trials_file="r-trials.csv")
    assert blocks(few, "trials", Data)[0].table.caption == "Every trial"
    [data] = blocks(dataclasses.replace(reports.results(records), trials_file="r-trials.csv"), "trials", Data)
    assert data.table.caption == "The last 3 of 4 trials"
    assert [row["trial"] for row in texts(data.table)] == ["2", "3", "4"]
    assert data.notes[-1] == "All 4 trials are in r-trials.csv, next to this page."


def test_a_long_text_in_a_row_is_cut():
    record = factories.make_record("x" * 5_000, status="failed", reason="y" * 5_000)
    [data] = blocks(reports.results([record]), "trials", Data)
    assert max(len(text) for row in texts(data.table) for text in row.values()) == 201


def test_of_many_runs_the_page_shows_the_last(monkeypatch):
    monkeypatch.setattr(environment, "MOST_RUNS", 2)
    records = [factories.make_record(run_id=f"cpu-{n}", trial=n) for n in range(3)]
    runs = blocks(reports.results(records), "environment", Data)[-1].table
    assert (runs.caption, [row["run"] for row in texts(runs)]) == ("The last 2 of 3 runs", ["cpu-1", "cpu-2"])


@pytest.mark.parametrize("noun", ["configs", "batch sizes"])
def test_of_many_configs_or_batch_sizes_charts_show_the_first_and_say_so(monkeypatch, noun):
    monkeypatch.setattr(page_settings, "MOST_DRAWN", 4)
    n = 5
    names = [("fp32" + "+x" * i, 4) if noun == "configs" else ("fp32", i + 1) for i in range(n)]
    results = reports.results([factories.make_record(*name) for name in names])
    for section in ("throughput", "bottlenecks")[: 2 if noun == "configs" else 1]:  # the other has panels by batch size
        [figure] = blocks(results, section, Figure)
        assert len(figure.table.rows) == n
        shown = {text.split("\n")[0] for text in tooltips(figure)}
        assert len(shown) == n - 1 and not any(factories.make_cell(*names[-1]).label in text for text in shown)
        assert f"The chart shows the first {n - 1} of {n} {noun}; the table has all." in figure.notes
    of_one_less = reports.results([factories.make_record(*name) for name in names[:-1]])
    assert not any("The chart shows" in note for note in blocks(of_one_less, "throughput", Figure)[0].notes)


def test_of_many_settings_the_first_have_charts(monkeypatch):
    monkeypatch.setattr(drawings, "MOST_DRAWN", 2)
    records = [factories.make_record(cell=factories.make_cell(image_size=32 * n)) for n in (1, 2, 3)]
    figures = blocks(reports.results(records), "throughput")
    assert [type(block) for block in figures] == [Heading, Figure, Heading, Figure, Heading, Data]
    assert figures[-1].notes[0] == "Charts show the first 2 settings; tables have all."


def test_of_many_phases_a_chart_shows_the_longest_and_the_rest_as_one():
    phases = [PhaseTimes(name=f"phase {n}", host_s=((1 + n % 20) * 1e-4,) * 5) for n in range(300)]
    measurement = factories.make_measurement(factories.make_step_times(0.5), phases=tuple(phases))
    [figure] = blocks(reports.results([factories.make_record(measurement=measurement)]), "bottlenecks", Figure)
    legend = [text for text in drawn(figure) if re.search(r"phase \d+$|other phases$", text)]
    assert {*legend} == {*(f"phase {n}" for n in range(19, 20 * MOST_PHASES, 20)), "288 other phases"}
    assert len(tooltips(figure)) == MOST_PHASES + 1 and "288 other phases 291 ms" in tooltips(figure)[-1]


# -- many ranks ----------------------------------------------------------------------------------------------------


def test_what_cannot_be_drawn_of_ranks_is_still_in_the_table():
    failed = [factories.make_record(cell=factories.make_cell("fp32", 4, ranks=n), status="oom") for n in (1, 2)]
    [figure] = blocks(reports.results(failed), "scaling", Figure)
    assert cut(texts(figure.table), "ranks", "images/s") == [["1", "oom"], ["2", "oom"]]
    assert figure.drawn.svg.startswith("<p>no cell of these results was measured: ")
