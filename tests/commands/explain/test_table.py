"""`tcbench explain`'s table, wide and narrow; the chart of the host's time."""

import io
import json
import re

import factories
import msgspec
import pytest
from consoles import printed
from reports import full, results
from show.charts.charts import assert_tidy, words

from tcbench.analysis import explanation
from tcbench.analysis.explanation import explain
from tcbench.analysis.summary import CellSummary, Setting, ratio, summarise
from tcbench.commands.diff import table as diff
from tcbench.commands.diff.differences import diff_records
from tcbench.commands.explain import table as view
from tcbench.commands.explain.chart import bottleneck_chart, would_help
from tcbench.commands.report.build import build
from tcbench.commands.roofline import table as roofline_view
from tcbench.commands.roofline.roofline import PartCost, WorkPart, cell_roofline
from tcbench.commands.run.table import footnotes
from tcbench.core.record import TAKE_ENOUGH, PhaseTimes
from tcbench.core.step_time import StepTime
from tcbench.engine.accelerators.ceilings import Ceilings
from tcbench.show.page.render import render
from tcbench.show.tables import Screen

CONFIGS = ("fp32", "fp32+dali", "fp32+dali+batched+nhwc+fused+static_graph")


@pytest.mark.parametrize(("width", "with_needs"), [(80, False), (132, True), (160, True)])
@pytest.mark.parametrize("models", [("resnet50",), ("resnet50", "resnet101")], ids=" and ".join)
def test_no_table_cuts_its_words(models: tuple[str, ...], width: int, with_needs: bool) -> None:
    records = [
        factories.make_record(
            cell=factories.make_cell(config, 8, model=model), images_per_s=10.0 * (i + 1), trial=trial
        )
        for model in models
        for i, config in enumerate(CONFIGS)
        for trial in range(3)
    ]
    explained = explain(records)
    out = Screen(file=io.StringIO(), width=width)
    out.table(view.table(explained))
    lines = out.file.getvalue().splitlines()
    assert ("update" in lines[0]) == with_needs
    assert all(len(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    for word in ("batch", "verdict", "next", "static_graph", *(models if len(models) > 1 else ())):
        assert f" {word} " in f" {text} "
    assert len(lines) <= 2 + len(models) * (1 + 4 * len(CONFIGS))
    out.notes(view.notes(explained)[:1])
    assert bool(re.search("A wider terminal also shows: .*update", out.file.getvalue())) is not with_needs


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ((30.0, 44.0, 60.0), "+ static_graph: undecided, measured 42.9"),
        ((60.0, 61.0, 62.0), "+ static_graph: measured 61.0"),
        ((30.0, 34.0, 50.0), "none known"),
    ],
)
def test_a_rung_that_was_tried_and_is_not_surely_faster_is_undecided(rates, says):
    rates_of = {"fp32": (39.0, 40.0, 41.0), "fp32+static_graph": rates}
    records = [
        factories.remeasured(
            factories.make_record(config, trial=trial, images_per_s=rate, noise=0.0),
            phases=factories.make_phases({"forward": 0.4 / rate, "backward": 3.2 / rate, "update": 0.4 / rate}),
        )
        for config, trial_rates in rates_of.items()
        for trial, rate in enumerate(trial_rates)
    ]
    explained = explain(records, lambda _: lambda _: "another rung")
    [_, row, *_] = printed(view.table(explained), width=160).splitlines()
    assert row.rstrip().endswith(says)
    value = json.loads(view.to_json(explained))["cells"][0]["bottleneck"]
    assert (value["verdict"], value["limit"]) == ("host-bound", "compute-bound")
    answer = "".join(piece.text for piece in would_help(explained[0]))
    assert ("undecided" in answer, "no known rung" in answer) == ("undecided" in says, says == "none known")


def test_the_costliest_parts_line_up_and_what_bounds_them_is_known_or_said_to_be_unknown() -> None:
    conv, loss = WorkPart("a/conv", "forward", 9, 3, 0.012), WorkPart("loss", "forward", 0, 0, 0.001)
    costs = [
        PartCost(conv, 0.5, "arithmetic", 0.25),
        PartCost(WorkPart("io", "io", 0, 0, 0.002), 0.1),
        PartCost(loss, 0),
    ]
    assert view.cost_lines(costs) == [
        "costliest parts, together 60% of a step:",
        "   50.0%     12 ms  a/conv  forward  bounded by arithmetic, 25% of that reached",
        "   10.0%      2 ms  io",
        "    0.0%      1 ms  loss    forward",
        "by kind: conv 50%, io 10%, loss 0%",
    ]
    more = view.cost_lines(
        [*costs, *(PartCost(WorkPart(f"b{n}/conv", "backward", 0, 0, 0.001), 0.01) for n in range(20))]
    )
    assert (len(more), more[-1]) == (12, "by kind: conv 70%, io 10%, loss 0%")
    unknown = view.cost_lines([PartCost(conv, 0.5), *costs[1:]])
    assert unknown[1].endswith("a/conv  forward  unknown") and "`tcbench roofline`" in unknown[-1]


@pytest.mark.parametrize(("trials", "remark"), [(1, True), (2, False)])
def test_one_trial_each_is_said_not_to_be_judged(trials: int, remark: bool) -> None:
    configs = ("fp32", "fp32+batched")
    records = [
        factories.make_record(config, images_per_s=rate, trial=trial)
        for config, rate in zip(configs, (40.0, 60.0), strict=True)
        for trial in range(trials)
    ]
    explained = explain(records, parts={record.cell: StepTime(device_s=1.0, on_host=True) for record in records})
    assert view.checks(explained) is not None
    assert view.checks(explain(records)) is None  # nothing was expected
    says = f"Not judged: {TAKE_ENOUGH}."
    assert (says in view.notes(explained)) is remark


def test_on_a_cpu_the_phase_farthest_below_the_ceilings_is_named_and_what_is_left_to_gain(monkeypatch) -> None:
    measurement = factories.make_measurement([1.0] * 5, phases=factories.make_phases({"forward": 0.3, "backward": 0.7}))
    records = [factories.make_record(trial=n, measurement=measurement) for n in range(2)]
    assert any("Run `tcbench roofline` to measure" in note for note in view.notes(explain(records)))
    limits = Ceilings("this", {"fp32": 5e10}, 1e12, "measured")
    monkeypatch.setattr("tcbench.run.ceilings._cached", lambda _: limits)
    explained = explain(records)
    phases = {part.name: part for part in cell_roofline(explained[0].summary, records, limits).phases}
    least = [phases[name].least_s(limits, "fp32") for name in ("forward", "backward")]
    assert view.below_roof(explained[0]) == ("backward", pytest.approx(least[1] / 0.7), pytest.approx(sum(least)))
    assert view.sentences(explained)[0].endswith(f"; backward is at {least[1] / 0.7:.0%} of its ceiling")
    assert f"at most {1 / sum(least):.2f}×" in view.notes(explained)[0]


def test_one_trial_that_is_far_from_the_others_is_named(monkeypatch) -> None:
    rates = (40.0, 41.0, 40.0, 39.0, 0.4)
    records = [factories.make_record(trial=n, images_per_s=rate) for n, rate in enumerate(rates)]
    warning = "fp32, batch size 4: trial 5 of 5 is 99.8 times slower than the median trial: measure again."
    assert warning in view.notes(explain(records))
    assert warning in footnotes(summarise(records))
    assert not any("median trial" in note for note in view.notes(explain(records[:4])))


def test_every_view_on_a_profiled_pass_unlike_the_timed_one_says_so() -> None:
    measured = factories.make_measurement([0.4] * 12, phases=(PhaseTimes(name="forward", host_s=(0.55,) * 5),))
    record = factories.make_record(measurement=measured)
    slower = msgspec.structs.replace(record, measurement=factories.make_measurement([0.5] * 12))
    figures = "phases 550 ms, a step 400 ms"
    assert f"fp32, batch size 4: {figures}" in view.notes(explain([record]))[-1]
    under = cell_roofline(summarise([record])[0], [record], Ceilings("a machine", {"fp32": 1e11}, 2e10, "made up"))
    assert figures in roofline_view.notes([under])[-1]
    difference = diff_records([record], [slower])
    assert diff.headline(difference).endswith(f"; doubtful: base {figures}")
    assert figures in render(build(results([record])))
    (explained,) = json.loads(view.to_json(explain([record])))["cells"]
    (roofed,) = json.loads(roofline_view.to_json([under]))["cells"]
    (pair,) = json.loads(diff.to_json([difference]))["cells"]
    doubts = [explained["bottleneck"]["doubtful"], roofed["doubtful"], pair["base"]["doubtful"]]
    assert (doubts, pair["current"]["doubtful"]) == ([figures] * 3, None)


def test_many_cells_take_no_more_time_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[CellSummary] = []
    original = vars(CellSummary)["setting"].fget

    def setting(self: CellSummary) -> Setting:
        calls.append(self)
        setting_of_cell: Setting = original(self)
        return setting_of_cell

    monkeypatch.setattr(CellSummary, "setting", property(setting))
    explain(factories.make_record(batch_size=n) for n in range(1, 41))
    assert 0 < len(calls) <= 3 * 40


def test_a_cell_is_compared_with_configs_that_may_be_tried_next_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = list[str]()

    def counting(other: CellSummary, summary: CellSummary):
        comparisons.append(f"{other.cell.config} over {summary.cell.config}")
        return ratio(other, summary)

    monkeypatch.setattr(explanation, "ratio", counting)
    explain(factories.make_record(f"fp32+x{n}") for n in range(40))
    assert not comparisons
    explain(map(factories.make_record, ("fp32", "fp32+dali", "fp32+x", "bf16", "fp32+dali+batched")))
    over = ["fp32+dali", "fp32+x", "bf16", "fp32+dali+batched"]
    assert comparisons == [
        *(f"{config} over fp32" for config in over),
        "fp32+dali+batched over fp32+dali",
        "fp32 over bf16",
    ]


def test_the_chart_says_of_which_pass_its_phases_are() -> None:
    timed, profiled = factories.make_record("fp32+dali"), factories.make_record("fp32")
    timed = factories.remeasured(timed, phases=factories.make_phases({"forward": timed.measurement.counted_times_s}))
    for records, passes in (([timed], "timed"), ([profiled], "profiled"), ([timed, profiled], "profiled or the timed")):
        assert f"phases on the host, of the {passes} pass · " in " ".join(words(bottleneck_chart(explain(records))))


def test_in_the_chart_a_batch_size_at_which_nothing_was_profiled_says_why() -> None:
    records = [record for record in full().records if record.cell.batch_size == 4 or record.status != "ok"]
    figure = bottleneck_chart(explain(records))
    assert_tidy(figure)
    assert {"out of memory", "not run"} <= set(words(figure))
