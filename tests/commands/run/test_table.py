import json
from pathlib import Path

import factories
import msgspec
import pytest
from consoles import printed, texts

from tcbench.analysis.summary import judged, speedups, summarise
from tcbench.commands.export.formats import to_github_action_benchmark
from tcbench.commands.run import scaling_table as scaling
from tcbench.commands.run import table as console
from tcbench.commands.run.scaling import curves as scaled
from tcbench.core.record import HostLoad, PlanChoice
from tcbench.show import tables
from tcbench.show.charts.provenance import small_print
from tcbench.show.console import make_console


def table(records) -> tables.Table:
    summaries = summarise(records)
    return console.results_table(summaries, speedups(summaries))


def shown(records) -> str:
    return printed(table(records))


@pytest.mark.parametrize(
    ("trials", "rate", "expected"),
    [
        (3, 80.0, "fp16, batch size 4: 2.00× fp32 (95% interval 1.95× to 2.05×)."),
        (3, 40.1, "fp16, batch size 4: 1.00× fp32 (95% interval 0.98× to 1.03×): undecided, either may be faster."),
        (1, 80.0, "fp16, batch size 4: 2.00× fp32 from one trial each, not judged."),
    ],
)
def test_a_sentence_says_what_the_fastest_is_over_the_base_and_how_sure_that_is(trials, rate, expected):
    records = [
        factories.make_record(
            config, images_per_s=rate_of_config * (1 + 0.01 * (trial * step % 3)), noise=0.0, trial=trial
        )
        for config, rate_of_config, step in (("fp32", 40.0, 1), ("fp16", rate, 2))
        for trial in range(trials)
    ]
    summaries = summarise(records)
    assert console.fastest_sentence(summaries, speedups(summaries)) == expected
    assert console.fastest_sentence(summaries[:1], speedups(summaries[:1])) == ""


def test_the_sentence_is_of_the_fastest_cell_though_another_has_the_larger_factor():
    rates = {("fp32", 4): 10.0, ("fp16", 4): 40.0, ("fp32", 8): 30.0, ("fp16", 8): 60.0}
    summaries = summarise([factories.make_record(*cell, images_per_s=rate) for cell, rate in rates.items()])
    assert console.fastest_sentence(summaries, speedups(summaries)).startswith("fp16, batch size 8: 2.0")


def test_a_factor_over_a_base_of_one_trial_is_not_judged_though_the_other_side_has_more():
    """Two runs: one of each cell once, and one of the best again."""
    again = [factories.make_record("fp16", run_id=f"r{n}", images_per_s=80.0 + n) for n in range(2)]
    records = [factories.make_record("fp32", run_id="r0"), *again]
    summaries = summarise(records)
    assert [summary.unit for summary in summaries] == ["steps", "trials"]
    assert judged(summaries) == frozenset()
    assert console.fastest_sentence(summaries, speedups(summaries)).endswith("from one trial each, not judged.")


def test_an_ablation_says_what_it_changes_and_no_config_stands_on_it():
    records = [make(config) for config in ("fp16", "fp16+dali") for make in (factories.make_record, ablated)]
    rows = [line.split() for line in shown(records).splitlines()[1:]]
    assert [row[:2] for row in rows[1:]] == [[":", "no-autotune"], rows[2][:2], [":", "no-autotune"]]
    assert rows[0][:2] == ["4", "fp16"] and rows[2][0] == "fp16+dali"
    alone = shown([ablated("fp16")]).splitlines()[1]
    assert alone.split()[:2] == ["4", "fp16:no-autotune"]


def ablated(config):
    return factories.make_record(cell=factories.make_ablation(config))


def test_the_footnotes_say_what_applies():
    fp32 = summarise([factories.make_record("fp32")])
    assert not any("fp16" in line for line in console.footnotes(fp32))
    both = summarise([factories.make_record("fp16", trial=n) for n in range(2)])
    lines = " ".join(console.footnotes(both))
    assert "over trials" in lines
    assert "fp16 stores 16 bits but computes in fp32" in lines


def test_a_table_says_where_plans_were_tuned_within_different_budgets():
    def tuned(config, *budgets_s):
        plans = tuple(PlanChoice("conv", "eng0", 0, False, timed=2, budget_s=budget_s) for budget_s in budgets_s)
        return factories.remeasured(factories.make_record(config), plans=plans)

    alike = summarise([tuned("fp32", 60.0, None), tuned("fp16", 60.0)])
    assert "budget" not in " ".join(console.footnotes(alike))
    assert (
        "cuDNN's plans were tuned with different budgets: 8 s, 15 s and 60 s; --fresh-autotune tunes with one."
        in console.footnotes(summarise([tuned("fp32", 60.0, 8.0), tuned("fp16", 15.0)]))
    )


def test_what_an_interval_of_one_trial_rests_on_is_said_in_words_wherever_it_is_shown():
    records = [*factories.make_trials("fp32", trials=3), factories.make_record("fp16")]
    summaries = summarise(records)
    assert [summary.unit for summary in summaries] == ["trials", "run"]
    shared = "the noise of the cell and of the run's other cells, and drift, which cancels in ratios"
    other = "the noise of the run's other cells"
    assert f"±: 95% interval over trials: {shared}; for a cell with one trial, from {other}." in console.footnotes(
        summaries
    )
    small = small_print(summaries, (), whiskers=True)
    assert f"95% confidence interval of the mean over trials, or from {other} where there is one trial" in small
    assert "pale: one trial" not in small_print(summaries, (), whiskers=False)
    entries = json.loads(to_github_action_benchmark(records))
    assert entries[1]["extra"].endswith(f"± is the 95% interval from {other}")
    assert console.footnotes(summaries[:1]) == ["±: 95% interval over trials."]


def test_the_json_is_json_even_where_an_interval_has_no_end():
    spiky = factories.make_measurement([0.1, 0.1, 9.0] * 4, block_steps=6)
    summaries = summarise([factories.make_record("fp32", measurement=spiky)])
    text = console.summary_json("run", Path("r.jsonl"), summaries, speedups(summaries))
    assert json.loads(text, parse_constant=pytest.fail)["cells"][0]["images_per_s"]["value"] > 0


def test_ranks_have_a_column_where_a_cell_has_several():
    records = [
        factories.make_record(cell=factories.make_cell(config, 4, ranks=ranks), images_per_s=rate, noise=0.0)
        for config, ranks, rate in (("fp32", 1, 40.0), ("fp32", 2, 80.0), ("fp32+dali", 2, 100.0))
    ]
    head, *rows = [line.split() for line in shown(records).splitlines() if line.strip()]
    assert [" ".join(row[:3]) for row in (head, *rows[:2])] == ["batch ranks config", "4 1 fp32", "4 2 fp32"]
    figures = [(row["images/s"].split()[0], row["vs fp32"].split()[0]) for row in texts(table(records))]
    assert figures == [("40.0", "1.00×"), ("80.0", "1.00×"), ("100", "1.25×")]  # over fp32 on as many ranks
    assert shown(records[:1]).split()[:2] == ["batch", "config"]


def lost(share: float) -> HostLoad:
    """A trial's load, of whose processor time others had this share."""
    stolen_s = share / (1 - share)
    return HostLoad(elapsed_s=1.0, processors=2, own_s=1.0, waited_s=0.0, others_s=0.0, stolen_s=stolen_s)


def test_a_cell_on_a_busy_machine_is_marked_and_the_share_is_told():
    loads = {4: None, 8: lost(0.04), 16: lost(0.31)}
    records = [factories.make_record("fp32", size, host=load) for size, load in loads.items()]
    rows = {line.split()[0]: line for line in shown(records).splitlines()[1:] if line.strip()}
    assert ["†" in rows[size] for size in ("4", "8", "16")] == [False, False, True]
    notes = console.footnotes(summarise(records))
    assert "†: busy machine: other work took up to 31% of the processor time of 1 of 3 cells; stop it" in " ".join(
        notes
    )
    assert "busy" not in " ".join(console.footnotes(summarise(records[:2])))
    throttled = msgspec.structs.replace(lost(0.0), throttled_s=0.5)
    records = [factories.make_record("fp32", 4, host=throttled)]
    notes = " ".join(console.footnotes(summarise(records)))
    assert "†: busy machine: a CPU quota withheld up to 33% of the processor time; stop it" in notes


def test_a_trial_that_stood_still_is_named():
    """A suspended laptop, a stopped process: its rate would be taken for the code's."""
    times_s = [0.01] * 11 + [5.0]
    records = [
        factories.make_record(measurement=factories.make_measurement(times_s)),
        factories.make_record("fp16", measurement=factories.make_measurement(times_s[:-1])),
    ]
    (note,) = [line for line in console.footnotes(summarise(records)) if line.startswith("Stalled")]
    assert note.startswith("Stalled: one step of fp32, batch size 4 took 5 s (median 10 ms): ")


def test_the_json_of_a_run_has_curves_where_there_are_ranks():
    records = [factories.make_record(cell=factories.make_cell(ranks=n), images_per_s=40.0 * n) for n in (1, 2)]

    def printed(records):
        summaries = summarise(records)
        curves = scaling.to_json(scaled(records))
        return json.loads(console.summary_json("r", Path("r.jsonl"), summaries, speedups(summaries), curves))

    assert [cell["ranks"] for cell in printed(records)["cells"]] == [1, 2]
    [curve] = printed(records)["scaling"]
    assert [cell["ranks"] for cell in curve["cells"]] == [1, 2]
    assert "scaling" not in printed(records[:1])


def test_a_factor_has_its_interval_and_is_pale_where_it_may_be_none():
    def cell(config, *rates):
        return [factories.make_record(config, trial=n, images_per_s=rate, noise=0.0) for n, rate in enumerate(rates)]

    summaries = summarise([*cell("fp32", 39, 40, 41), *cell("fp32+dali", 79, 80, 81), *cell("fp32+nhwc", 38, 40, 42)])
    columns = console.results_table(summaries, speedups(summaries)).on_console(132).columns
    [base, faster, same] = next(column.cells for column in columns if str(column.header) == "vs fp32")
    assert str(base) == "1.00×"
    assert str(faster).startswith("2.00× ± ")
    assert str(same).startswith("1.00× ± ")
    assert [text.style for text in (base, faster, same)] == ["", "", "dim"]


@pytest.mark.parametrize("text", ["x[/]", "[link=file:///etc/passwd]x[/link]", "[bold]x", ":smile:"])
def test_text_is_never_markup(capsys, text):
    console = make_console()
    console.print(text)
    console.print(tables.Table([tables.Column(text, str)], [text]))
    assert capsys.readouterr().out.split() == [text] * 3
