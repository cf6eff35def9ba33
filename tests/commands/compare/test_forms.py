"""A comparison as a table, Markdown, JSON and annotations of GitHub."""

import ast
import html
import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import factories
import msgspec
import pytest
from comparisons import reported, sides

from tcbench.analysis.compare import PhaseChange
from tcbench.analysis.stats import Interval
from tcbench.analysis.verdict import Rule
from tcbench.analysis.welch import Estimate, SampleStats
from tcbench.commands.compare import table as form
from tcbench.commands.compare.github import MOST_OF_A_KIND, command, github
from tcbench.commands.compare.junit import junit
from tcbench.commands.compare.markdown import MOST_CHARACTERS, markdown
from tcbench.commands.compare.table import as_text, to_json
from tcbench.core.record import GpuSample, GpuSamples, GpuState
from tcbench.show import verdicts


def test_the_interval_that_decides_is_printed_where_the_usual_one_seems_to_decide_otherwise():
    configs = dict.fromkeys(factories.LADDERS, 1.0)
    base, current = sides(configs, trials=4, spread=0.01)
    base += factories.make_trials("wild", trials=4, spread=0.18)
    current += factories.make_trials("wild", trials=4, spread=0.18, seed=1, images_per_s=26)
    comparison = reported(base, current, ("throughput", "memory"))
    cell = next(cell for cell in comparison.cells if cell.cell.config == "wild")
    assert (cell.verdict, cell.ratio.high < 0.97) == ("inconclusive", True)
    expected = r"judged by its 99\.\d+% interval, -\d+\.\d% to \+\d+\.\d%, which includes no change at all"
    assert re.search(rf"\nwild, batch size 4: inconclusive: throughput .* {expected}", as_text(comparison))
    assert "which includes no change at all" in markdown(comparison)


def test_80_columns_show_all_of_the_trials_that_a_cell_lacks(monkeypatch):
    monkeypatch.setattr(form, "PLAIN_WIDTH", 80)
    comparison = reported(*sides({"fp32": 0.985}, trials=4, spread=0.03))
    comparison = replace(comparison, cells=(replace(comparison.cells[0], more_trials=280),))
    lines = [line.split() for line in as_text(comparison).splitlines()]
    row = next(place for place, words in enumerate(lines) if words[:2] == ["4", "fp32"])
    assert "inconclusive," in lines[row] and lines[row + 1] == ["+280", "trials"]


def test_a_pass_whose_interval_reaches_past_the_threshold_is_said_to_be_by_one_side():
    base, current = sides({"fp32": 1.0}, trials=4, spread=0.02)
    (cell,) = reported(base, current).cells
    between = (cell.ratio.low + cell.estimate.ratio.limit(0.05)) / 2
    comparison = reported(base, current, rule=Rule(threshold=1 - between))
    assert (comparison.cells[0].verdict, cell.ratio.low < between) == ("pass", True)
    for text in (as_text(comparison), markdown(comparison)):
        assert "verdict: by a one-sided test, so the 95% interval may cross the threshold" in " ".join(text.split())
    assert "one-sided" not in as_text(reported(base, current, rule=Rule(threshold=1.01 - cell.ratio.low)))


def test_cells_with_the_same_reason_share_a_line():
    base = [factories.make_record(config) for config in factories.LADDERS]
    text = as_text(reported(base, base))
    (line,) = [line for line in text.splitlines() if "two trials per side" in line]
    assert line.startswith("fp32, batch size 4; fp32+dali, batch size 4; fp32+dali+batched, batch size 4; and 7 more: ")


def test_the_median_step_stands_beside_the_ratio_only_where_it_tells_something():
    base, current = sides({"fp32": 1.0})
    assert "median step" not in as_text(reported(base, current))
    spiky = []
    for record in current:
        times_s = list(record.measurement.step_times_s)
        times_s[3] *= 20
        measurement = msgspec.structs.replace(record.measurement, step_times_s=tuple(times_s))
        spiky.append(msgspec.structs.replace(record, measurement=measurement))
    text = as_text(reported(base, spiky))
    assert "spikes 0.0% -> 5.0%" in " ".join(text.split())
    line = next(line for line in text.splitlines() if line.startswith("    4  fp32"))
    assert "0.991, spikes" in line and line.endswith("regression")


def test_what_no_number_of_trials_decides_is_not_said_to_be_at_the_threshold_where_trials_vary_too_much():
    wild = [factories.make_record(trial=trial, images_per_s=rate) for trial, rate in enumerate((4.0, 400.0))]
    (cell,) = reported(wild, wild[::-1]).cells
    assert (cell.verdict, cell.more_trials) == ("inconclusive", None)
    assert cell.sentence.endswith("not even 1,000 trials a side would show on which side of the threshold it lies")


def test_copies_are_not_said_to_be_near_the_threshold():
    """A loss of 10% between equal trials."""
    sides = [factories.make_record(images_per_s=rate) for rate in (40.0, 36.0)]
    [cell] = reported(*([msgspec.structs.replace(r, trial=n) for n in range(5)] for r in sides)).cells
    assert cell.sentence.endswith("identical figures and may be copies; measure both sides again")


def one_phase_slower(**facts):
    slower_by = Interval(0.116, 0.08, 0.15)
    update = PhaseChange("update", 0.1, 0.2, Interval(0.1, 0.09, 0.11), slower_by, "unsettled")
    won = PhaseChange("backward", 0.4, 0.3, Interval(-0.1, -0.11, -0.09), Interval(-0.1, -0.12, -0.08))
    base, current = sides({"fp32": 1.0})
    comparison = reported(base, current)
    [cell] = comparison.cells
    return replace(comparison, cells=(replace(cell, verdict="inconclusive", phases=(won, update), **facts),))


@pytest.mark.parametrize("form", [as_text, markdown, github, junit, to_json])
def test_work_moved_only_where_another_phase_is_surely_faster(form):
    message = (
        "update is confirmed slower by 11.6% of the step (8.0% to 15.0%); "
        "whether the whole step is slower is not settled"
    )
    text = html.unescape(" ".join(form(one_phase_slower()).split())).replace("%25", "%")
    assert message in text
    assert "work moved" not in text
    assert verdicts.signed(one_phase_slower(more_trials=None).cells[0]).endswith("inconclusive, update slower")


def test_a_verdict_begins_with_the_median_step_where_it_is_surely_slower():
    [cell] = one_phase_slower(slower_at_median=Interval(0.4, 0.38, 0.42)).cells
    assert cell.sentence.startswith(
        "the median step is confirmed to take 2.50× as long (2.38× to 2.63×); the mean step is"
    )


def test_few_doubtful_trials_are_named_and_many_are_counted():
    base, current = sides({"fp32": 1.0})
    throttled = GpuSamples(
        state=GpuState(), samples=(GpuSample(1.0, throttle_mask=0x40),), timed_from_s=0.0, timed_to_s=2.0
    )
    base[2] = msgspec.structs.replace(base[2], gpu=throttled)
    text = as_text(reported(base, current))
    assert "base, fp32, batch size 4: trial 3 throttled (hardware thermal slowdown)" in text
    hot = [msgspec.structs.replace(record, gpu=throttled) for record in current]
    assert "current: 8 trials throttled, in 1 cell (--format json lists them)" in as_text(reported(base, hot))


def test_cells_of_one_name_are_told_apart_by_what_differs():
    small, large = factories.make_cell(image_size=64), factories.make_cell(image_size=96)
    both = [record for cell in (small, large) for record in factories.make_trials(cell=cell)]
    text = as_text(reported(both, both))
    assert "image_size 64" in text and "image_size 96" in text
    assert "where" not in as_text(reported(both[:8], both[:8]))


def test_an_interval_without_end_is_null():
    comparison = reported(factories.make_trials(), factories.make_trials(seed=1))
    endless = replace(comparison.cells[0], estimate=Estimate(SampleStats(2, 0.0, 1e9), SampleStats(2, 0.0, 1e9)))
    (cell,) = json.loads(to_json(replace(comparison, cells=(endless,))))["cells"]
    assert cell["ratio"] == {"value": 1.0, "low": 0.0, "high": None}


@pytest.mark.long
def test_it_never_grows_beyond_what_a_comment_holds():
    base, current = sides({f"config-{n}-{'x' * 200}": 0.9 for n in range(300)}, trials=2)
    text = markdown(reported(base, current))
    assert 50_000 < len(text) <= MOST_CHARACTERS
    assert re.search(r"and \d+ more that do not fit here", text)
    assert text.count("<details>") == text.count("</details>")


def test_a_long_reason_is_cut():
    base = factories.make_trials()
    current = [factories.make_record(status="failed", reason="x" * 10_000)]
    assert len(markdown(reported(base, current))) < 2000


COMMAND = re.compile(r"::(error|warning|notice) title=([^:,]*)::(.*)")


def commands(text: str) -> list[tuple[str, str, str]]:
    assert text.endswith("\n")
    return [COMMAND.fullmatch(line).groups() for line in text.splitlines()]


def test_escaping_is_that_of_github_s_toolkit():
    assert command("error", "a: b, c%\n", "d: e, f%\r\n") == "::error title=a%3A b%2C c%25%0A::d: e, f%25%0D%0A"


def test_no_more_of_a_kind_than_are_shown():
    annotations = commands(github(reported(*sides({f"c{n}": share for n in range(30) for share in (0.9,)}))))
    assert sum(kind == "error" for kind, _, _ in annotations) == MOST_OF_A_KIND
    title, message = annotations[MOST_OF_A_KIND - 1][1:]
    assert title == "tcbench%3A 21 more"
    assert message.count("%0A") == 20
    improved = commands(github(reported(*sides({f"c{n}": 1.2 for n in range(30)}))))
    assert len(improved) == MOST_OF_A_KIND


JUDGEMENT = ("compare", "comparability", "verdict", "phase_tests", "welch", "noise", "rounds", "scatter")


@pytest.mark.parametrize("module", ["table", "markdown", "github", "junit", "chart"])
def test_what_shows_a_comparison_imports_the_report_and_nothing_else_of_the_judgement(module):
    source = Path(find_spec(f"tcbench.commands.compare.{module}").origin).read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {f"{getattr(node, 'module', '')}.{name.name}." for node in imports for name in node.names}
    assert any("tcbench.commands.compare.cell_report." in name for name in names)
    assert not [name for name in names for judge in JUDGEMENT if f"tcbench.analysis.{judge}." in name]


def test_an_inconclusive_cell_whose_row_says_how_many_trials_it_lacks_has_no_line_of_its_own():
    report = reported(*sides({"fp32": 0.985}, trials=4, spread=0.03))
    assert report.cells[0].missing_trials and "inconclusive: throughput" not in as_text(report)
