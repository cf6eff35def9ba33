import copy
import dataclasses
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators import attained as model
from tcbench.engine.accelerators import ceilings
from tcbench.engine.accelerators.attained import ConvolutionShares, attained, expected_s, rows
from tcbench.engine.accelerators.peaks import peak_rates, work_floor_s
from tcbench.engine.work import (
    BatchNormBackward,
    BatchNormForward,
    CholeskyInverse,
    Conv2d,
    ConvDgrad,
    ConvFprop,
    ConvFpropStats,
    ConvWgrad,
    KroneckerFactor,
    Norm,
    Relu,
)
from tcbench.hardware import gpus

V100, A100 = gpus.load("V100"), gpus.load("A100")
LISTS = ("product", "bandwidth", "latency", "driver", "link")


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path, monkeypatch):
    """No ceilings of this user's stand in for rows."""
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    attained.cache_clear()
    yield
    attained.cache_clear()


def conv(n=256, c=256, size=14, k=256, r=3, stride=1, layout="NHWC", dtype="float16", math="strict"):
    return Conv2d(n, c, size, size, k, r, r, stride, r // 2, layout, dtype, math)


# -- the table ------------------------------------------------------------------------------------------------------


def convolution_rows():
    """(direction, precision, rows) of every group of convolutions, which has one source."""
    return [
        (kind, precision, group)
        for kind, by_precision in rows()["convolution"].items()
        for precision, group in by_precision.items()
    ]


def sources():
    """The source that each row or group of rows names."""
    yield from (row["source"] for kind in LISTS for row in rows()[kind])
    yield from (group["source"] for _, _, group in convolution_rows())
    yield rows()["solver"]["source"]


def test_every_row_has_a_source_that_says_how_it_was_had():
    assert set(rows()) == {"sources", "convolution", "solver", *LISTS}
    for name in sources():
        source = rows()["sources"][name]
        assert source["what"] and source["url"]
        assert source["confirmed"].startswith(("read 20", "known", "assumed"))
    assert set(sources()) == set(rows()["sources"])


@pytest.fixture(scope="module")
def validation():
    """benchmarks/virtual.py, which is no module of the package."""
    path = Path(__file__).parents[3] / "benchmarks" / "virtual.py"
    spec = importlib.util.spec_from_file_location("validation", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_nothing_that_the_model_is_compared_with_is_a_source_of_it(validation):
    compared_with = {published.source for published in validation.PUBLISHED}
    assert len(compared_with) >= 5
    for source in rows()["sources"].values():
        assert source["url"] not in compared_with
        assert not re.search(r"images?/s|img/s|DeepLearningExamples|MLPerf|Naruse", f"{source['what']} {source['url']}")


@pytest.mark.parametrize("says", ["MXNet 20.12, fp32", "MXNet 20.12, AMP"])
def test_a_training_step_takes_about_as_long_as_was_published(validation, says):
    published = next(p for p in validation.PUBLISHED if p.says == says)
    [rate] = validation.device_images_per_s([(published, validation.cell(published))]).values()
    assert rate == pytest.approx(published.images_per_s, rel=validation.GOAL)


def test_the_page_shows_this_models_predictions_and_every_published_rate_and_whether_it_counts(validation):
    page = (Path(__file__).parents[3] / "docs" / "virtual.md").read_text("utf-8")
    for published in validation.PUBLISHED:
        assert attained(gpus.load(published.card)).name in page, "make its table anew: benchmarks/virtual.py"
        row = next(line for line in page.splitlines() if line.startswith(f"| {published.card} | {published.says} |"))
        assert f"| {published.images_per_s} | `{published.config}`, {published.batch_size} |" in row
        assert row.endswith("| no |" if published.out else "| yes |")


def changed_row(monkeypatch):
    table = copy.deepcopy(dict(rows()))
    table["convolution"]["dgrad"]["fp16"]["spatial"]["memory"] = 0.5
    monkeypatch.setattr(model, "rows", lambda: table)


CHANGES = {
    "a row of the table": changed_row,
    "the tiles of a product": lambda patch: patch.setattr(model, "TILES", ((128, 128),)),
    "what a normalisation reads twice": lambda patch: patch.setattr(model, "_read_again_bytes", lambda *_: 0),
    "the padding of channels": lambda patch: patch.setattr(model, "_padding", lambda *_: 1.0),
    "the transposes of NCHW": lambda patch: patch.setattr(model, "_transposes_s", lambda *_: 0.0),
    "an inverse's time": lambda patch: patch.setattr(model, "_inverse_s", lambda *_: 1.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_model_has_another_name(monkeypatch, change):
    name = attained(V100).name
    assert re.fullmatch("attained-[0-9a-f]{12}", name)
    change(monkeypatch)
    attained.cache_clear()
    assert attained(V100).name != name


@pytest.mark.parametrize("figure", ["memory_bandwidth_bytes_s", "sm_clock_hz", "multiprocessors", "memory_bytes"])
def test_another_card_has_another_name_and_another_text_of_its_file_has_not(figure):
    other = dataclasses.replace(V100, **{figure: getattr(V100, figure) // 2})
    assert attained(other).name != attained(V100).name
    assert attained(dataclasses.replace(V100, json=V100.json + " ")).name == attained(V100).name


# -- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", gpus.names())
def test_a_streaming_kernel_takes_its_bytes_at_the_attained_bandwidth_and_a_latency(name):
    gpu = gpus.load(name)
    relu = Relu(1 << 26, "float16")
    fraction = attained(gpu).bandwidth
    assert 0.6 < fraction < 1
    seconds = relu.bytes / (gpu.memory_bandwidth_bytes_s * fraction) + 2e-6
    assert expected_s(relu, gpu) == pytest.approx(seconds)


def test_a_large_convolution_takes_its_operations_at_the_attained_rate():
    work = ConvFprop(conv(n=250, c=512, size=32, k=512))  # 250 * 1024 pixels by 512: whole waves of 80 nearly fill it
    seconds = expected_s(work, V100) - 6e-6
    assert work.flops / (seconds * peak_rates(V100).fp16_flops_s) == pytest.approx(0.64, rel=0.03)


def test_a_convolution_with_few_operations_takes_its_bytes():
    work = ConvFprop(conv(c=64, size=56, k=64, r=1))
    rate = V100.memory_bandwidth_bytes_s * 0.85
    assert expected_s(work, V100) == pytest.approx(work.bytes / rate + 6e-6)


def test_a_wave_takes_as_long_with_one_tile_as_with_one_for_every_multiprocessor():
    def seconds(images):  # of 64 pixels by 64 channels each: a tile
        return expected_s(ConvFprop(conv(n=images, c=4096, size=8, k=64)), V100) - 6e-6

    assert seconds(1) == pytest.approx(seconds(80))
    assert seconds(81) == pytest.approx(2 * seconds(80))


def test_tensor_cores_multiply_the_zeros_that_pad_three_channels_to_eight():
    padded = [expected_s(ConvFprop(conv(c=c, size=224, k=64, r=7, stride=2)), V100) for c in (3, 8)]
    assert padded[0] == pytest.approx(padded[1], rel=0.01)
    single = [expected_s(ConvFprop(conv(c=c, size=224, k=64, r=7, dtype="float32")), V100) for c in (3, 8)]
    assert single[1] > 2 * single[0]


def test_tensor_cores_cost_transposes_in_nchw():
    nhwc, nchw = ConvFprop(conv()), ConvFprop(conv(layout="NCHW"))
    x, w, y = nchw.operands

    def extra_s(gpu):
        return expected_s(nchw, gpu) - expected_s(nhwc, gpu)

    def moved_s(gpu, *operands):
        rate = gpu.memory_bandwidth_bytes_s * attained(gpu).bandwidth
        return sum(2 * operand.bytes / rate + 2e-6 for operand in operands)

    assert extra_s(V100) == pytest.approx(moved_s(V100, x, w))
    assert extra_s(A100) == pytest.approx(moved_s(A100, x, w, y))


@pytest.mark.parametrize("changed", [{"dtype": "float32"}, {"n": 1}, {"size": 1, "r": 1}])
def test_there_is_nothing_to_transpose_without_tensor_cores_or_in_a_matrix(changed):
    nhwc, nchw = (expected_s(ConvFprop(conv(**{**changed, "layout": layout})), A100) for layout in ("NHWC", "NCHW"))
    assert nhwc == nchw


def test_sums_of_a_convolutions_output_are_not_transposed():
    plain, stats = ConvFprop(conv(layout="NCHW")), ConvFpropStats(conv(layout="NCHW"))
    assert expected_s(stats, A100) == pytest.approx(expected_s(plain, A100), rel=1e-3)


@pytest.mark.parametrize(("work", "inputs"), [(BatchNormForward, 1), (BatchNormBackward, 2)])
def test_a_normalisation_reads_its_inputs_twice(work, inputs):
    norm = Norm(256, 64, 56, 56, "NHWC", "float16")
    launched = work(norm, 1e-5, 0.1) if work is BatchNormForward else work(norm)
    kept = V100.multiprocessors * 128 * 1024
    traffic = launched.bytes + inputs * norm.size * 2 - kept
    rate = V100.memory_bandwidth_bytes_s * attained(V100).bandwidth
    assert expected_s(launched, V100) == pytest.approx(traffic / rate + 2e-6)


def test_a_small_normalisation_stays_on_the_chip():
    norm = Norm(8, 64, 28, 28, "NHWC", "float16")
    work = BatchNormForward(norm, 1e-5, 0.1)
    rate = V100.memory_bandwidth_bytes_s * attained(V100).bandwidth
    assert expected_s(work, V100) == pytest.approx(work.bytes / rate + 2e-6)


def test_tf32_is_computed_where_there_is_tf32():
    slower, faster = (ConvFprop(conv(dtype="float32", math=math)) for math in ("strict", "tf32"))
    assert expected_s(faster, A100) < expected_s(slower, A100)
    assert expected_s(faster, V100) == expected_s(slower, V100)


def test_another_card_attains_in_proportion_to_its_products_and_bandwidth():
    there, here = (attained(gpu).convolutions["dgrad", "spatial", "fp16"] for gpu in (V100, A100))
    assert there == ConvolutionShares(pytest.approx(0.50), pytest.approx(0.90))
    assert here.arithmetic == pytest.approx(0.50 * 0.869 / 0.896)
    assert here.memory == pytest.approx(0.90 * 0.918 / 0.904)


def test_a_card_between_two_rows_takes_the_older_ones():
    between = attained(dataclasses.replace(A100, sm=86))
    assert (between.bandwidth, between.products) == (attained(A100).bandwidth, attained(A100).products)


def measure(card, times):
    """Keep ceilings as such a card would measure them that is so many times what the table expects of it."""
    copy_s = 2 * ceilings.COPY_BYTES / attained(card).bandwidth_bytes_s + 2e-6
    rates = {name: times * work.flops / expected_s(work, card) for name, work in ceilings.products(card.sm).items()}
    value = ceilings.MeasuredCeilings(
        device_name=card.device_name,
        flops_s=rates,
        bandwidth_bytes_s=times * 2 * ceilings.COPY_BYTES / copy_s,
        says="measured",
    )
    ceilings.keep(ceilings.path("some-machine"), value)
    attained.cache_clear()
    return value


@pytest.mark.parametrize("card", [V100, A100])
def test_ceilings_that_equal_what_the_table_expects_change_no_forecast(card):
    works = [*model.sample_works(), *ceilings.products(card.sm).values()]
    before = [expected_s(work, card) for work in works]
    measure(card, 1.0)
    assert [expected_s(work, card) for work in works] == pytest.approx(before)


def test_ceilings_that_were_measured_on_such_a_card_scale_its_rows():
    by_table = attained(A100)
    measured = measure(A100, 0.5)
    here = attained(A100)
    for name, work in ceilings.products(80).items():
        assert work.flops / expected_s(work, A100) == pytest.approx(measured.flops_s[name], rel=0.02)
    assert here.products == {name: pytest.approx(share / 2) for name, share in by_table.products.items()}
    assert here.bandwidth == pytest.approx(by_table.bandwidth / 2, rel=1e-3)
    assert re.fullmatch("attained-[0-9a-f]{12}[+]roofline", here.name)
    assert here.name.partition("+")[0] != by_table.name
    assert attained(V100).bandwidth == 0.904


@pytest.mark.parametrize("work", [ConvFprop, ConvDgrad, ConvWgrad])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", gpus.names())
def test_expected_is_never_below_the_floor_but_by_winograds_method(work, dtype, name):
    gpu = gpus.load(name)
    for r, stride in ((1, 1), (1, 2), (3, 1), (3, 2)):
        launched = work(conv(r=r, stride=stride, dtype=dtype))
        floor_s = work_floor_s(launched, peak_rates(gpu), gpu.memory_bandwidth_bytes_s)
        by_winograd = dtype == "float32" and (r, stride) == (3, 1)
        assert expected_s(launched, gpu) > floor_s * (0.5 if by_winograd else 1)


def test_a_card_without_known_rates_is_one_clear_line():
    with pytest.raises(SelectionError, match=r"6\.0 are not known"):
        expected_s(ConvFprop(conv()), dataclasses.replace(V100, sm=60))


@pytest.mark.parametrize("of", ["kernel", "graph", "call", "solver", "copy", "captured"])
def test_the_host_pays_microseconds_for_every_request(of):
    assert 1e-6 < attained(V100).driver_s[of] < 20e-6


def test_an_inverse_takes_its_rows_one_after_the_other_and_where_they_are_many_its_arithmetic():
    """The rows' latency is of potrf alone: 331 us for 512 on an L40S, a third of what an inverse waits for."""
    small, large = (expected_s(CholeskyInverse(size), gpus.load("L40S")) for size in (512, 32768))
    assert small / 3 == pytest.approx(331e-6, rel=0.1)
    rate = 7 / 3 * 32768**3 / large
    assert 0.5 < rate / peak_rates(gpus.load("L40S")).fp32_flops_s < 0.70


def test_a_factor_of_16_bits_is_a_whole_product_on_tensor_cores_and_one_of_float32_half_of_one():
    wide, narrow = (KroneckerFactor(4096, 65536, "NHWC", dtype, 1, 0.5) for dtype in ("float32", "float16"))
    here = attained(V100)
    assert expected_s(wide, V100) == pytest.approx(4096 * 4097 * 65536 / (15.67e12 * here.products["fp32"]), rel=0.01)
    rate = here.peaks.fp16_flops_s * here.products["fp16"]
    assert expected_s(narrow, V100) == pytest.approx(2 * 4096 * 4097 * 65536 / rate, rel=0.01)


def test_links_are_those_of_their_generation():
    rates = [attained(gpus.load(name)).link_bytes_s / 1e9 for name in ("V100", "A100", "L40S", "H100", "B200")]
    assert rates == [12, 25, 25, 54.8, 54.8]
