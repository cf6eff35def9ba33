"""The forest plot says every verdict in words, and nothing in it covers anything else."""

from __future__ import annotations

import msgspec
import pytest
from factories import LADDERS, make_cell, make_environment, make_record, make_trials
from hypothesis import given, settings
from hypothesis import strategies as st
from present.charts.charts import assert_tidy, words

from tcbench.analysis.compare import APART, IN_TURNS, compare
from tcbench.analysis.verdict import Rule
from tcbench.core.errors import SelectionError
from tcbench.core.record import STATUSES, Record
from tcbench.present.charts.palette import Fill
from tcbench.present.sides import Labels
from tcbench.views.comparison.chart import comparison_chart

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
    [
        (("fp32",), (4,)),
        (LADDERS, (4,)),
        (LADDERS, tuple(2**n for n in range(16))),
        ((LONG, "fp32", LONG + "2"), (4, 8)),
    ],
    ids=["1", "10", "160", "long names"],
)
def test_the_chart_is_tidy_and_has_a_row_per_cell(configs: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    figure = comparison_chart(compare(side(configs, sizes), side(configs, sizes, 0.9, seed=1)))
    assert_tidy(figure)
    said = words(figure)
    assert said.count("▼ regression in backward") == len(configs) * len(sizes)
    assert [word for word in said if word.startswith("batch size")] == [f"batch size {size}" for size in sizes]
    assert figure.get_figwidth() == 10
    assert figure.get_figheight() < 4 + 0.4 * len(configs) * len(sizes)


@pytest.mark.parametrize("factor", [1e-8, 1e-3, 0.3, 0.9999, 30, 1e8])
def test_numbers_of_the_axis_stand_apart_however_far_it_reaches(factor: float) -> None:
    figure = comparison_chart(compare(side((LONG,)), side((LONG,), factor=factor, seed=1)))
    assert_tidy(figure)
    assert "1" in words(figure)


def test_rows_stand_by_batch_size_then_config() -> None:
    records = [*side(("fp16", "fp32"), (8,)), *side(("fp16", "fp32"), (4,))]
    [axes] = comparison_chart(compare(records, records)).axes
    labels = sorted(zip(axes.get_yticks(), axes.get_yticklabels(), strict=True), key=lambda pair: pair[0])
    rows = [label.get_text() for _, label in labels][:6]
    assert rows == ["batch size 4", "fp16", "fp32", "batch size 8", "fp16", "fp32"]


def test_every_verdict_is_a_sign_and_a_word() -> None:
    base = [
        *make_trials("fp32"),
        *make_trials("fp32+dali"),
        *make_trials("fp16"),
        *make_trials("bf16", trials=2),
        *make_trials("lost"),
        *make_trials("broke"),
        make_record("mended", status="oom"),
        make_record("never", status="skipped"),
        make_record("once"),
    ]
    current = [
        *make_trials("fp32", images_per_s=36, seed=1),
        *make_trials("fp32+dali", seed=1, spread=0.001),
        *make_trials("fp16", images_per_s=48, seed=1),
        *make_trials("bf16", trials=2, images_per_s=38.8, seed=1),
        make_record("broke", status="oom"),
        *make_trials("mended"),
        make_record("never", status="skipped"),
        make_record("once", trial=1),
        *make_trials("fresh"),
    ]
    figure = comparison_chart(compare(base, current))
    assert_tidy(figure)
    said = words(figure)
    assert [word for word in said if word[:1] in "▼▲=?✗✓+–" and word[1:2] == " "] == [
        "▼ regression in backward",
        "= pass",
        "▲ improved",
        next(word for word in said if word.startswith("? inconclusive") and "1 more" not in word),
        "✗ missing",
        "✗ changed status",
        "✓ runs now",
        "– not measured",
        "? inconclusive, 1 more trial",
        "+ new",
    ]
    assert "ok → out of memory: the kernel killed the worker (SIGKILL)" in said
    assert "out of memory → ok" in said
    assert "skipped on both sides" in said
    assert any(word.startswith("not in current; base: ") for word in said)
    assert any(word.startswith("not in base; current: ") for word in said)
    assert any(word.endswith("(one trial)") for word in said)
    assert "geometric mean of 4 cells" in said


def lines_at(figure: Fill | object) -> list[float]:
    """Ratios at which lines stand from top to bottom."""
    ratios = []
    for axes in figure.axes:  # type: ignore[attr-defined]
        for line in axes.lines:
            xs = list(line.get_xdata())
            if len(xs) == 2 and xs[0] == xs[1] and list(line.get_ydata()) == [0, 1]:
                ratios.append(round(xs[0], 4))
    return ratios


def test_the_threshold_is_on_the_side_that_is_worse() -> None:
    records = side(("fp32",))
    assert lines_at(comparison_chart(compare(records, records, rule=Rule(0.1)))) == [1.0, 0.9]
    memory = compare(records, records, metrics=("memory",), rule=Rule(0.1))
    assert lines_at(comparison_chart(memory)) == [1.0, round(1 / 0.9, 4)]


def test_marks_stand_at_the_ratio_and_whiskers_end_with_the_interval() -> None:
    comparison = compare(make_trials(), make_trials(images_per_s=36, seed=1))
    ratio = comparison.cells[0].ratio
    assert ratio is not None
    [axes] = comparison_chart(comparison).axes
    drawn = {round(x, 6) for line in axes.lines for x in line.get_xdata()}
    assert {round(value, 6) for value in (ratio.value, ratio.low, ratio.high)} <= drawn


def test_machines_have_blocks_of_their_own_and_one_mean() -> None:
    def machine(name: str, factor: float) -> list[Record]:
        there = make_environment(name)
        return [msgspec.structs.replace(r, environment=there, run_id=name) for r in side(("fp32",), (4, 8), factor)]

    base = [*machine("h100", 1), *machine("h200", 2)]
    figure = comparison_chart(compare(base, base))
    assert_tidy(figure)
    assert len(figure.axes) == 2
    said = words(figure)
    for name in ("h100", "h200"):
        assert f"{name} · throughput: images per second over total time" in said
    assert sum(word.startswith("geometric mean") for word in said) == 1
    assert "geometric mean of 4 cells of all blocks" in said


def test_two_settings_of_one_machine_have_names_of_their_own() -> None:
    records = [*make_trials(), *make_trials(cell=make_cell(image_size=96))]
    said = words(comparison_chart(compare(records, records)))
    assert any("image_size 64" in word for word in said) and any("image_size 96" in word for word in said)


def test_metrics_have_blocks_of_their_own() -> None:
    records = side(("fp32",))
    figure = comparison_chart(compare(records, records, metrics=("throughput", "memory")))
    assert_tidy(figure)
    assert len(figure.axes) == 2


def test_what_differs_is_said_below() -> None:
    other = [msgspec.structs.replace(r, environment=make_environment(kernel="6.2.0")) for r in make_trials(seed=1)]
    said = words(comparison_chart(compare(make_trials(), other)))
    assert any("kernel: 6.1.0 -> 6.2.0" in word for word in said)


def test_the_title_is_a_question_and_the_line_below_it_names_the_files() -> None:
    records = side(("fp32",))
    named = comparison_chart(compare(records, records), Labels("results/a/main.jsonl", "mine"))
    assert words(named)[:2] == ["What got slower?", "mine against main · 1 pass at a threshold of 3%"]


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

    assert_tidy(comparison_chart(compare(some(0), some(1))))


def test_nothing_to_compare_and_too_much_are_one_clear_line() -> None:
    with pytest.raises(SelectionError, match="nothing to compare"):
        comparison_chart(compare([], []))
    many = [make_record("fp32", size) for size in range(1, 602)]
    with pytest.raises(SelectionError, match="601 cells do not fit in one chart"):
        comparison_chart(compare(many, []))


def test_ranks_have_blocks_of_their_own() -> None:
    def trials(factor: float) -> list[Record]:
        return [
            record
            for ranks in (1, 2)
            for record in make_trials(trials=3, cell=make_cell(ranks=ranks), images_per_s=40.0 * ranks * factor)
        ]

    figure = comparison_chart(compare(trials(1.0), trials(0.9)))
    assert_tidy(figure)
    heads = [word.partition(" · ")[0] for word in words(figure) if "images per second over total time" in word]
    assert heads == ["1 rank", "2 ranks"]


def test_small_print_says_over_what_the_interval_is() -> None:
    drifting = [30.0, 50.0, 42.0, 35.0, 47.0, 39.0]
    base, current = (
        [make_record(trial=n, images_per_s=rate * share) for n, rate in enumerate(drifting)] for share in (1.0, 0.9)
    )
    for method, over in ((APART, "trials (Welch)"), (IN_TURNS, "rounds, in pairs")):
        assert f"over {over} ·" in " ".join(words(comparison_chart(compare(base, current, method=method))))
