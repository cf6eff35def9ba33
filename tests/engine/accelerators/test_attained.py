import dataclasses
import re
from pathlib import Path

import pytest
import virtual

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators import attained as model
from tcbench.engine.accelerators import ceilings
from tcbench.engine.accelerators.attained import rows, timing_model
from tcbench.engine.work import BatchNormForward, Conv2d, ConvDgrad, ConvFprop, ConvFpropStats, ConvWgrad, Norm
from tcbench.hardware import gpus

V100, A100 = gpus.load("V100"), gpus.load("A100")
LISTS = ("product", "bandwidth", "latency", "driver", "link")


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path, monkeypatch):
    """No ceilings of this user's stand in for rows."""
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    timing_model.cache_clear()
    yield
    timing_model.cache_clear()


def conv(n=256, c=256, size=14, k=256, r=3, stride=1, layout="NHWC", dtype="float16", math="strict"):
    return Conv2d(n, c, size, size, k, r, r, stride, r // 2, layout, dtype, math)


# -- the table ------------------------------------------------------------------------------------------------------


def sources():
    """The source that each row or group of rows names."""
    yield from (row["source"] for kind in LISTS for row in rows()[kind])
    yield from (group["source"] for kind in rows()["convolution"].values() for group in kind.values())
    yield rows()["solver"]["source"]


def test_every_row_has_a_source_that_says_how_it_was_had():
    assert set(rows()) == {"sources", "convolution", "solver", *LISTS}
    for name in sources():
        source = rows()["sources"][name]
        assert source["what"] and source["url"]
        assert source["confirmed"].startswith(("read 20", "known", "assumed"))
    assert set(sources()) == set(rows()["sources"])


def test_nothing_that_the_model_is_compared_with_is_a_source_of_it():
    compared_with = {published.source for published in virtual.PUBLISHED}
    assert len(compared_with) >= 5
    for source in rows()["sources"].values():
        assert source["url"] not in compared_with
        assert not re.search(r"images?/s|img/s|DeepLearningExamples|MLPerf|Naruse", f"{source['what']} {source['url']}")


def test_a_training_step_takes_about_as_long_as_was_published():
    published = next(p for p in virtual.PUBLISHED if p.says == "MXNet 20.12, AMP")
    [rate] = virtual.device_images_per_s([(published, virtual.cell(published))]).values()
    assert rate == pytest.approx(published.images_per_s, rel=virtual.GOAL)


def test_the_page_shows_this_models_predictions_and_every_published_rate_and_whether_it_counts():
    page = (Path(__file__).parents[3] / "docs" / "virtual.md").read_text("utf-8")
    for published in virtual.PUBLISHED:
        assert timing_model(gpus.load(published.card)).name in page, "make its table anew: benchmarks/virtual.py"
        prefix = f"| {published.card} | {published.says} | {published.images_per_s} | "
        prefix += f"`{published.config}`, {published.batch_size} |"
        [row] = [line for line in page.splitlines() if line.startswith(prefix)]
        assert row.endswith("%) |") == bool(published.out)


# -- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [{"dtype": "float32"}, {"n": 1}, {"size": 1, "r": 1}])
def test_there_is_nothing_to_transpose_without_tensor_cores_or_in_a_matrix(changed):
    nhwc, nchw = (
        timing_model(A100).expected_s(ConvFprop(conv(**{**changed, "layout": layout}))) for layout in ("NHWC", "NCHW")
    )
    assert nhwc == nchw


def test_sums_of_a_convolutions_output_are_not_transposed():
    plain, stats = ConvFprop(conv(layout="NCHW")), ConvFpropStats(conv(layout="NCHW"))
    assert timing_model(A100).expected_s(stats) == pytest.approx(timing_model(A100).expected_s(plain), rel=1e-3)


def test_a_small_normalisation_stays_on_the_chip():
    norm = Norm(8, 64, 28, 28, "NHWC", "float16")
    work = BatchNormForward(norm, 1e-5, 0.1)
    rate = V100.memory_bandwidth_bytes_s * timing_model(V100).bandwidth
    assert timing_model(V100).expected_s(work) == pytest.approx(work.bytes / rate + 2e-6)


def measure(card, times):
    """Keep ceilings as such a card would measure them that is so many times what the table expects of it."""
    copy_s = 2 * ceilings.COPY_BYTES / timing_model(card).bandwidth_bytes_s + 2e-6
    rates = {
        name: times * work.flops / timing_model(card).expected_s(work)
        for name, work in ceilings.products(card.sm).items()
    }
    value = ceilings.Ceilings(
        device_name=card.device_name,
        flops_s=rates,
        bandwidth_bytes_s=times * 2 * ceilings.COPY_BYTES / copy_s,
        says="measured",
    )
    value.store("some-machine")
    timing_model.cache_clear()
    return value


@pytest.mark.parametrize("card", [V100, A100])
def test_ceilings_that_equal_what_the_table_expects_change_no_forecast(card):
    works = [*model.sample_works(), *ceilings.products(card.sm).values()]
    before = [timing_model(card).expected_s(work) for work in works]
    measure(card, 1.0)
    assert [timing_model(card).expected_s(work) for work in works] == pytest.approx(before)


def test_ceilings_that_were_measured_on_such_a_card_scale_its_rows():
    by_table = timing_model(A100)
    measured = measure(A100, 0.5)
    rates = timing_model(A100)
    for name, work in ceilings.products(80).items():
        assert work.flops / timing_model(A100).expected_s(work) == pytest.approx(measured.flops_s[name], rel=0.02)
    assert rates.products == {name: pytest.approx(share / 2) for name, share in by_table.products.items()}
    assert rates.bandwidth == pytest.approx(by_table.bandwidth / 2, rel=1e-3)
    assert re.fullmatch("attained-[0-9a-f]{12}[+]roofline", rates.name)
    assert rates.name.partition("+")[0] != by_table.name
    assert timing_model(V100).bandwidth == 0.904


@pytest.mark.parametrize("work", [ConvFprop, ConvDgrad, ConvWgrad])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", gpus.NAMES)
def test_expected_is_never_below_the_floor_but_by_winograds_method(work, dtype, name):
    gpu = gpus.load(name)
    for r, stride in ((1, 1), (1, 2), (3, 1), (3, 2)):
        launched = work(conv(r=r, stride=stride, dtype=dtype))
        floor_s = timing_model(gpu).peaks.floor_s(launched)
        by_winograd = dtype == "float32" and (r, stride) == (3, 1)
        assert timing_model(gpu).expected_s(launched) > floor_s * (0.5 if by_winograd else 1)


def test_a_card_without_known_rates_is_one_clear_line():
    with pytest.raises(SelectionError, match=r"6\.0 are not known"):
        timing_model(dataclasses.replace(V100, sm=60)).expected_s(ConvFprop(conv()))


def test_links_are_those_of_their_generation():
    rates = [timing_model(gpus.load(name)).link_bytes_s / 1e9 for name in ("V100", "A100", "L40S", "H100", "B200")]
    assert rates == [12, 25, 25, 54.8, 54.8]
