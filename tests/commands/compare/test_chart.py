"""The forest plot says every verdict in words, and nothing in it covers anything else."""

import pytest
from comparisons import reported
from factories import LADDERS, make_cell, make_phases, make_record, make_trials, remeasured
from hypothesis import given, settings
from hypothesis import strategies as st
from show.charts.charts import assert_tidy, words

from tcbench.commands.compare.chart import comparison_chart
from tcbench.core.record import STATUSES, Record

LONG = "fp16+opencv+nhwc+fused+batched+static_graph+a_rung_with_a_name_that_is_wider_than_its_column_is"


def side(
    configs: tuple[str, ...] = LADDERS,
    sizes: tuple[int, ...] = (4,),
    factor: float = 1.0,
    trials: int = 5,
    seed: int = 0,
) -> list[Record]:
    return [
        record
        for place, config in enumerate(configs)
        for size in sizes
        for record in make_trials(config, size, trials, images_per_s=factor * (20 + place), seed=seed)
    ]


@pytest.mark.parametrize(
    ("configs", "sizes"),
    [(("fp32",), (4,)), (LADDERS, (4, 8, 16)), ((LONG, "fp32", LONG + "2"), (4, 8))],
    ids=["1", "30", "long names"],
)
def test_the_chart_is_tidy_and_has_a_row_per_cell(configs: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    figure = comparison_chart(reported(side(configs, sizes), side(configs, sizes, 0.9, seed=1)))
    assert_tidy(figure)
    text = words(figure)
    assert text.count("▼ regression in backward") == len(configs) * len(sizes)
    assert [word for word in text if word.startswith("batch size")] == [f"batch size {size}" for size in sizes]
    assert figure.get_figwidth() == 10
    assert figure.get_figheight() < 4 + 0.4 * len(configs) * len(sizes)


@pytest.mark.parametrize("factor", [1e-8, 0.9999, 30])
def test_numbers_of_the_axis_stand_apart_however_far_it_reaches(factor: float) -> None:
    figure = comparison_chart(reported(side((LONG,)), side((LONG,), factor=factor, seed=1)))
    assert_tidy(figure)
    assert "1" in words(figure)


def test_two_settings_of_one_machine_have_names_of_their_own() -> None:
    records = [*make_trials(), *make_trials(cell=make_cell(image_size=96))]
    text = words(comparison_chart(reported(records, records)))
    assert any("image_size 64" in word for word in text) and any("image_size 96" in word for word in text)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_mixture_is_tidy(data: st.DataObject) -> None:
    configs = data.draw(
        st.lists(st.sampled_from([*LADDERS, LONG, "$x_1$", "日本"]), min_size=1, max_size=6, unique=True)
    )

    def some(seed: int) -> list[Record]:
        records: list[Record] = []
        for config in configs:
            status = data.draw(st.sampled_from([*STATUSES, None]))
            trials = data.draw(st.sampled_from([1, 2, 5]))
            rate = data.draw(st.sampled_from([1e-3, 36.0, 40.0, 1e5]))
            spread = data.draw(st.sampled_from([0.0, 0.01, 0.5, 3.0]))
            if status == "ok":
                records += make_trials(config, 4, trials, images_per_s=rate, spread=spread, seed=seed)
            elif status is not None:
                records.append(make_record(config, status=status))
        return records or [make_record()]

    assert_tidy(comparison_chart(reported(some(0), some(1))))


def test_ranks_have_blocks_of_their_own() -> None:
    def trials(factor: float) -> list[Record]:
        return [
            record
            for ranks in (1, 2)
            for record in make_trials(trials=3, cell=make_cell(ranks=ranks), images_per_s=40.0 * ranks * factor)
        ]

    figure = comparison_chart(reported(trials(1.0), trials(0.9)))
    assert_tidy(figure)
    heads = [word.partition(" · ")[0] for word in words(figure) if "images per second over total time" in word]
    assert heads == ["1 rank", "2 ranks"]


@pytest.mark.parametrize("update_s", [0.02, 0.026])
def test_the_phase_that_decides_has_its_own_interval(update_s: float) -> None:
    def phased(record: Record, update_s: float) -> Record:
        phases = {"forward": 0.075 + 0.003 * (record.trial % 3), "update": update_s * (1 + record.trial / 1000)}
        return remeasured(record, phases=make_phases(phases), step_times_s=(sum(phases.values()),) * 20)

    base, current = ([phased(record, s) for record in make_trials()] for s in (0.02, update_s))
    figure = comparison_chart(reported(base, current))
    pale = [line.get_xdata() for line in figure.axes[0].lines if line.get_alpha()]
    assert ("pale" in " ".join(words(figure))) == (update_s > 0.02)
    assert [list(ends) for ends in pale] == [pytest.approx([1 / 1.061] * 2, rel=0.005)] * (update_s > 0.02)


def test_a_cell_of_one_trial_a_side_has_its_ratio_without_an_interval() -> None:
    figure = comparison_chart(reported([make_record(images_per_s=40)], [make_record(images_per_s=20)]))
    assert "0.500 (one trial)" in words(figure)
