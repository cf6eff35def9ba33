"""The chart of cells over commits: regressions are marked by sign and word, and nothing covers anything else."""

import math
import random

import msgspec
import pytest
from factories import LADDERS, make_cell, make_environment, make_record
from histories import commit, over_commits
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from show.charts.charts import assert_tidy, words

from tcbench.commands.history import chart
from tcbench.commands.history.chart import history_chart
from tcbench.commands.history.history import build_history
from tcbench.core.record import STATUSES, MeasureSettings, Record
from tcbench.show.charts.palette import PAPER

LONG = "fp16+opencv+nhwc+fused+batched+static_graph+a_rung_with_a_name_that_is_wider_than_its_column_is"


def ladder(commits: int, sizes: tuple[int, ...] = (4,), configs: tuple[str, ...] = LADDERS, trials: int = 3) -> Figure:
    """Every third config is a tenth slower from the middle on; all waver by 1% from commit to commit."""
    records: list[Record] = []
    for place, config in enumerate(configs):
        draw = random.Random(place)
        rates = [
            (20 + 10 * place)
            * (0.9 if day >= commits / 2 and place % 3 == 0 else 1.0)
            * math.exp(0.01 * draw.gauss(0, 1))
            for day in range(commits)
        ]
        for size in sizes:
            records += over_commits(rates, config, size, trials)
    return history_chart(build_history(records))


def test_a_cell_of_one_commit_is_no_strip_and_the_small_print_says_so() -> None:
    records = [*over_commits([40, 40]), *over_commits([30], "fp16")]
    figure = history_chart(build_history(records))
    assert len(figure.axes) == 1
    assert "left out: 1 cell measured at one commit only" in " ".join(words(figure)).replace("\n", " ")
    assert "4 commits" in " ".join(words(history_chart(build_history(over_commits([40] * 4)))))
    history = build_history([*over_commits([40, 40]), *over_commits([30] * 3, "fp16")[-1:]])
    assert len(history.revisions) == 3
    assert "2 commits" in " ".join(words(history_chart(history)))  # no column without a point


@pytest.mark.parametrize(
    ("commits", "sizes", "configs"),
    [(30, (4,), LADDERS[:3]), (4, (4, 8), (LONG, "fp32", LONG + "2"))],
    ids=["30 commits", "long names"],
)
def test_the_chart_is_tidy_and_has_a_strip_per_cell(commits, sizes, configs) -> None:
    figure = ladder(commits, sizes, configs)
    assert_tidy(figure)
    assert len(figure.axes) == len(sizes) * len(configs)


def test_one_trial_has_no_whisker_and_an_empty_mark() -> None:
    [axes] = history_chart(build_history(over_commits([40, 30], trials=1))).axes
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_markerfacecolor() for line in marks] == [PAPER, PAPER]
    segments = [segment for c in axes.collections if isinstance(c, LineCollection) for segment in c.get_segments()]
    assert sum(map(len, segments)) == 0


def test_a_cell_without_a_figure_leaves_a_gap_and_says_how_it_ended() -> None:
    records = over_commits([40, 40, 40])
    stored = [r for r in records if r.environment and r.environment.commit != commit(1)]
    broke = make_record(
        status="oom", started_at=records[8].started_at, run_id="r", environment=make_environment(commit=commit(1))
    )
    figure = history_chart(build_history([*stored, broke]))
    assert_tidy(figure)
    [axes] = figure.axes
    assert not [line for line in axes.lines if line.get_marker() == "None" and len(set(line.get_xdata())) > 1]
    assert "✗ out of memory" in words(figure)


def test_a_long_name_of_a_setting_covers_nothing() -> None:
    measures = [make_cell(measure=MeasureSettings(max_time_s=seconds)) for seconds in (2.5, 4.0)]
    records = [
        record
        for cell, scenario in zip(measures, ("cpu", "a_scenario_with_a_long_name" * 5), strict=True)
        for record in over_commits([40, 40], cell=msgspec.structs.replace(cell, scenario=scenario))
    ]
    figure = history_chart(build_history(records))
    assert_tidy(figure)
    assert "batch size 4 · scenario cpu · max time s 2.5" in words(figure)


def test_of_very_many_commits_the_newest_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart, "MAX_REVISIONS", 60)
    figure = history_chart(build_history(over_commits([40.0] * 65, trials=1)))
    assert "the newest 60 of 65 commits" in words(figure)
    assert_tidy(figure)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_any_mixture_is_tidy(data: st.DataObject) -> None:
    days = data.draw(st.integers(2, 12))
    records: list[Record] = []
    for config in data.draw(
        st.lists(st.sampled_from(["fp32", LONG, "$x_1$", "日本"]), min_size=1, max_size=4, unique=True)
    ):
        rates = [data.draw(st.sampled_from([1e-4, 36.0, 38.5, 40.0, 1e6])) for _ in range(days)]
        grounds = [{"kernel": data.draw(st.sampled_from("ab"))} for _ in range(days)]
        trials = over_commits(rates, config, 4, data.draw(st.sampled_from([1, 3])), environments=grounds)
        for record in trials:
            status = data.draw(st.sampled_from(["ok", *STATUSES]))
            if status == "ok":
                records.append(record)
            else:
                facts = {"started_at": record.started_at, "run_id": record.run_id, "environment": record.environment}
                records.append(make_record(config, status=status, trial=record.trial, **facts))  # type: ignore[arg-type]
    assert_tidy(history_chart(build_history(records)))


@pytest.mark.long
def test_of_more_cells_than_strips_those_that_regressed_are_drawn_and_the_others_named() -> None:
    steady = [record for size in range(1, 14) for record in over_commits([40, 40], batch_size=size)]
    figure = history_chart(build_history([*steady, *over_commits([40, 30], batch_size=99)]))
    assert len(figure.axes) == 12
    assert "batch size 99" in words(figure)
    assert any("2 more are not drawn (choose with --config or --bs): fp32, batch size 12; " in w for w in words(figure))
