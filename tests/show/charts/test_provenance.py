"""A chart says where its numbers come from, and parts those that come from elsewhere."""

import pytest
from factories import make_cell, make_environment, make_record
from show.charts.charts import assert_tidy, run, words

from tcbench.analysis.summary import summarise
from tcbench.commands.run.chart import throughput_chart
from tcbench.core.record import Input, KfacSettings, TrainSettings
from tcbench.show.charts.provenance import MAX_PANELS


def test_panels_are_named_by_what_differs() -> None:
    cells = [make_cell("fp32", 8), make_cell("fp32", 8, image_size=224), make_cell("fp32", 8, seed=1)]
    figure = throughput_chart(summarise([make_record(cell=cell) for cell in cells]), title="T")
    assert {"64 × 64 images · seed 0", "224 × 224 images · seed 0", "64 × 64 images · seed 1"} <= set(words(figure))
    assert_tidy(figure)


def test_a_panels_name_says_a_setting_once_and_one_that_is_not_set_not_at_all() -> None:
    train = TrainSettings(kfac=KfacSettings(damping=0.5))
    cells = [make_cell(), make_cell(train=train), make_cell(input=Input(kind="synthetic"))]
    figure = throughput_chart(summarise([make_record(cell=cell) for cell in cells]), title="T")
    kfac = "generated JPEGs · damping 0.5 · decay 0.95 · interval 1"
    assert {"generated JPEGs", kfac, "synthetic input, one batch in memory"} <= set(words(figure))


def test_commits_are_panels_of_their_own_and_all_those_of_a_run_are_named() -> None:
    environments = [
        make_environment(commit="aaaaaaaaaaaa"),
        make_environment(commit="bbbbbbbbbbbb", project_commit="c" * 12),
    ]
    separate = [make_record(run_id=str(n), environment=environment) for n, environment in enumerate(environments)]
    names = set(words(throughput_chart(summarise(separate), title="T")))
    assert {"tcbench 0.1.0 at aaaaaaaaaaaa", "project at cccccccccccc · tcbench 0.1.0 at bbbbbbbbbbbb"} <= names
    mixed = [make_record(trial=n, environment=environment) for n, environment in enumerate(environments)]
    text = " ".join(words(throughput_chart(summarise(mixed), title="T")))
    assert "2 trials per cell" in text
    assert "tcbench 0.1.0 at aaaaaaaaaaaa, bbbbbbbbbbbb · project at cccccccccccc" in text
    files = [make_environment(commit="a+", sources={"tcbench/": digest}) for digest in "12"]
    changed = [make_record(run_id=f"run-{n}", environment=environment) for n, environment in enumerate(files)]
    assert {"run run-0", "run run-1"} <= set(words(throughput_chart(summarise(changed), title="T")))


@pytest.mark.long
def test_of_more_panels_than_a_picture_holds_the_small_print_names_the_others() -> None:
    records = [make_record(cell=make_cell(seed=seed)) for seed in range(MAX_PANELS + 2)]
    figure = throughput_chart(summarise(records), title="T")
    assert len(figure.axes) == MAX_PANELS
    assert "2 more are not drawn (choose with --config, or name fewer files): seed 12; seed 13" in words(figure)
    assert_tidy(figure)


def test_the_small_print_says_where_the_numbers_come_from() -> None:
    text = " ".join(words(throughput_chart(run(trials=3, batch_sizes=(4,)), title="T")))
    for fact in ("Tesla V100-DGXS-16GB", "64 × 64 images", "generated JPEGs", "3 trials per cell", "tcbench 0.1.0"):
        assert fact in text
    assert "95% confidence interval of the mean over trials" in text
    folder = make_record(cell=make_cell(input=Input(kind="folder", path="/data/imagenet/train")))
    assert "images of train" in " ".join(words(throughput_chart(summarise([folder]), title="T")))


def test_the_small_print_names_the_library_that_computed_and_the_command_that_brings_a_faster_one() -> None:
    numpy = make_environment(accelerator="NumPy", shortfall="oneDNN is not installed: uv pip install onednn-cpu-gomp")
    text = " ".join(words(throughput_chart(summarise([make_record(environment=numpy)]), title="T")))
    assert "computed by NumPy (oneDNN is not installed: uv pip install onednn-cpu-gomp)" in text
    onednn = make_environment(accelerator="oneDNN 3.2.0")
    text = " ".join(words(throughput_chart(summarise([make_record(environment=onednn)]), title="T")))
    assert "computed by oneDNN 3.2.0" in text
    assert "computed by oneDNN 3.2.0 (" not in text
    assert "computed by" not in " ".join(words(throughput_chart(summarise([make_record()]), title="T")))
