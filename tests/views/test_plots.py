"""Charts hold what they should, and nothing in them covers anything else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from factories import LADDERS, make_cell, make_environment, make_measurement, make_record
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from tcbench.analysis.summary import CellSummary, summarise
from tcbench.errors import SelectionError, StoreError
from tcbench.record import STATUSES, Environment, Input, Record, Status
from tcbench.views import plots

TALK = "Chainer で Tensor コア (fp16) を使いこなす"
TWELVE = (*LADDERS, "fp32+opencv", "fp16+opencv")
V100 = make_environment("tesla-v100", "Tesla V100-DGXS-16GB")
BATCHED, STATIC = LADDERS[8], LADDERS[9]


def rate(config: str, batch_size: int) -> float:
    """Something like the talk's images/s."""
    return 100 + 90 * LADDERS.index(config) if config in LADDERS else 150 + batch_size


def run(
    configs: Iterable[str] = LADDERS,
    batch_sizes: Sequence[int] = (32, 64, 128, 256),
    *,
    missing: dict[tuple[str, int], Status] | None = None,
    environment: Environment = V100,
    trials: int = 1,
    noise: float = 0.02,
    scale: float = 1.0,
) -> tuple[CellSummary, ...]:
    """The summaries of a run; `missing` cells ended otherwise than ok."""
    return summarise(
        make_record(
            config,
            size,
            status=(missing or {}).get((config, size), "ok"),
            images_per_s=scale * rate(config, size),
            noise=noise,
            trial=trial,
            run_id=environment.machine,
            environment=environment,
        )
        for trial in range(trials)
        for config in configs
        for size in batch_sizes
    )


def texts(figure: Figure) -> list[Text]:
    """Everything written in a figure, ticks outside the axes' limits left out."""
    found = list(figure.texts)
    for axes in figure.axes:
        found += axes.texts
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    return [text for text in found if text.get_text() and text.get_visible()]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def extent(text: Text) -> Bbox:
    """What a text covers, in pixels, without the last half pixel of its box."""
    return text.get_window_extent().padded(-0.5)


def assert_tidy(figure: Figure) -> None:
    """No text covers another, leaves the figure, or, in the legend, enters a panel."""
    boxes = [(text.get_text(), extent(text)) for text in texts(figure)]
    for text, box in boxes:
        inside = figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert inside and figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, f"{text!r} leaves the figure"
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} covers {other!r}"
    legend = [extent(text) for text in texts(figure) if text.get_gid() == "legend"]
    swatches = [artist.get_window_extent() for artist in figure.artists if isinstance(artist, Rectangle)]
    for axes in figure.axes:
        for box in (*legend, *swatches):
            assert not axes.get_window_extent().overlaps(box), "the legend enters a panel"


def bars(figure: Figure) -> list[Rectangle]:
    return [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, Rectangle)]


# --- the talk's chart ---


@pytest.mark.parametrize(
    ("configs", "batch_sizes"),
    [
        (("fp32",), (4,)),
        ((STATIC,), (4, 8)),
        (LADDERS, (4, 8)),
        (LADDERS, (32, 64, 128, 256)),
        (TWELVE, (8, 16, 32, 64, 128, 256)),
        (LADDERS, (4096, 8192, 16384, 32768, 65536, 131072)),
    ],
    ids=["1x1", "long name", "10x2", "10x4", "12x6", "large batches"],
)
def test_the_chart_is_tidy_and_has_a_bar_per_cell(configs: tuple[str, ...], batch_sizes: tuple[int, ...]) -> None:
    figure = plots.throughput_chart(run(configs, batch_sizes), title="The ladder", subtitle="on a GPU")
    assert_tidy(figure)
    assert len(bars(figure)) == len(configs) * len(batch_sizes)
    assert {"Better", "images/s", "batch size", *map(str, batch_sizes)} <= set(words(figure))


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_any_mixture_of_ends_is_tidy(data: st.DataObject) -> None:
    configs = data.draw(st.lists(st.sampled_from(TWELVE), min_size=1, max_size=12, unique=True))
    sizes = data.draw(st.lists(st.sampled_from([1, 4, 8, 32, 256, 1024]), min_size=1, max_size=6, unique=True))
    cells = [(config, size) for config in configs for size in sizes]
    missing = {cell: status for cell in cells if (status := data.draw(st.sampled_from(STATUSES))) != "ok"}
    scale = data.draw(st.sampled_from([1e-6, 1e-3, 1.0, 37.0, 1e6]))
    noise = data.draw(st.sampled_from([0.0, 0.01, 0.5, 2.0]))
    summaries = run(configs, sizes, missing=missing, scale=scale, noise=noise)
    figure = plots.throughput_chart(summaries, title="T", subtitle="s")
    assert_tidy(figure)
    assert len(bars(figure)) == len(cells) - len(missing)


def test_a_cell_without_a_number_says_why_in_its_place() -> None:
    missing: dict[tuple[str, int], Status] = {
        ("fp32", 64): "crashed",
        ("fp16+opencv", 64): "timeout",
        ("fp32", 128): "failed",
        ("fp32", 256): "oom",
        ("fp16+opencv", 256): "skipped",
    }
    configs = ("fp32", "fp16+opencv")
    summaries = run(configs, missing=missing)
    figure = plots.throughput_chart(
        [s for s in summaries if (s.cell.config, s.cell.batch_size) != ("fp16+opencv", 32)], title="T"
    )
    [axes] = figure.axes
    # A group's two bars stand half a bar left and right of its tick.
    places = {
        round(tick + offset, 3): (config, size)
        for size, tick in zip((32, 64, 128, 256), axes.get_xticks(), strict=True)
        for config, offset in zip(configs, (-0.5, 0.5), strict=True)
    }
    said = {
        places[round(text.xy[0], 3)]: text.get_text()
        for text in axes.texts
        if isinstance(text, Annotation) and text.get_rotation() == 90
    }
    assert said == {
        ("fp16+opencv", 32): "not run",
        ("fp32", 64): "crashed",
        ("fp16+opencv", 64): "timed out",
        ("fp32", 128): "failed: ValueError: the loss is nan",
        ("fp32", 256): "out of memory",
        ("fp16+opencv", 256): "skipped: needs cv2",
    }
    assert_tidy(figure)


def test_a_long_reason_is_shortened_to_what_the_panel_takes() -> None:
    record = make_record("fp32", status="failed", reason="RuntimeError: " + "very " * 60 + "sad")
    figure = plots.throughput_chart(summarise([record]), title="T")
    [reason] = [text for text in words(figure) if text.startswith("failed")]
    assert reason.endswith("…")
    assert_tidy(figure)


def test_whiskers_end_where_the_interval_does() -> None:
    [summary] = run(("fp32",), (32,), trials=4, noise=0.2)
    figure = plots.throughput_chart([summary], title="T")
    assert summary.images_per_s is not None
    ends = {float(y) for line in figure.axes[0].lines for y in np.atleast_1d(line.get_ydata())}
    assert ends == {summary.images_per_s.low, summary.images_per_s.high}


def test_a_whisker_without_an_end_is_cut_and_marked() -> None:
    one_step = make_record("fp32", measurement=make_measurement((0.1, 0.1)))
    figure = plots.throughput_chart(summarise([one_step, make_record("fp16")]), title="T")
    assert [line.get_marker() for line in figure.axes[0].lines].count("^") == 1
    assert_tidy(figure)


def test_the_value_axis_starts_at_zero() -> None:
    assert plots.throughput_chart(run(("fp32",), (4,)), title="T").axes[0].get_ylim()[0] == 0


def test_configs_are_chosen_and_ordered() -> None:
    figure = plots.throughput_chart(run(batch_sizes=(4,)), title="T", configs=["fp16", "fp32"])
    assert [text.get_text() for text in texts(figure) if text.get_gid() == "legend"] == ["fp16", "fp32"]
    assert len(bars(figure)) == 2


def test_the_legend_names_what_each_config_adds() -> None:
    figure = plots.throughput_chart(run(TWELVE, (4,)), title="T")
    rungs = ["+ dali", "+ batched", "+ nhwc + fused", "+ static_graph"]
    legend = [text.get_text() for text in texts(figure) if text.get_gid() == "legend"]
    assert legend == ["fp32", *rungs, "fp32 + opencv", "fp16", *rungs, "fp16 + opencv"]


def test_machines_stand_in_panels_of_their_own() -> None:
    summaries = (*run(), *run(batch_sizes=(4, 8), environment=make_environment()))
    figure = plots.throughput_chart(summaries, title="Two machines")
    assert len(figure.axes) == 2
    assert {"Tesla V100-DGXS-16GB", "AMD EPYC"} <= set(words(figure))
    assert_tidy(figure)


def test_panels_are_named_by_what_differs() -> None:
    cells = [make_cell("fp32", 8), make_cell("fp32", 8, image_size=224), make_cell("fp32", 8, seed=1)]
    figure = plots.throughput_chart(summarise([make_record(cell=cell) for cell in cells]), title="T")
    assert {"64 × 64 images · seed 0", "224 × 224 images · seed 0", "64 × 64 images · seed 1"} <= set(words(figure))
    assert_tidy(figure)


def test_more_settings_than_a_chart_takes_are_refused() -> None:
    records = [make_record(cell=make_cell(seed=seed)) for seed in range(plots.MAX_PANELS + 1)]
    with pytest.raises(SelectionError, match="9 different settings"):
        plots.throughput_chart(summarise(records), title="T")


def test_the_small_print_says_where_the_numbers_come_from() -> None:
    said = " ".join(words(plots.throughput_chart(run(trials=3, batch_sizes=(4,)), title="T")))
    for fact in ("Tesla V100-DGXS-16GB", "64 × 64 images", "generated JPEGs", "3 trials per cell", "tcbench 0.1.0"):
        assert fact in said
    assert "95% confidence interval of the mean over trials" in said
    folder = make_record(cell=make_cell(input=Input(kind="folder", path="/data/imagenet/train")))
    assert "images of train" in " ".join(words(plots.throughput_chart(summarise([folder]), title="T")))


def test_nothing_to_plot_is_one_clear_line() -> None:
    with pytest.raises(SelectionError, match="no results to plot; `tcbench run` makes some"):
        plots.throughput_chart([], title="T")
    with pytest.raises(SelectionError, match="no results of fp16 to plot"):
        plots.throughput_chart(run(("fp32",)), title="T", configs=["fp16"])


@pytest.mark.parametrize("title", [TALK, "$x_1$ costs 5$", "a very long title " * 12, ""])
def test_any_title_is_written_or_replaced(title: str) -> None:
    assert_tidy(plots.throughput_chart(run(("fp32",), (4,)), title=title, subtitle=title))


def test_without_a_japanese_font_the_scenarios_name_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "_has_glyph", lambda character: ord(character) < 0x3000)
    assert "cpu" in words(plots.throughput_chart(run(("fp32",), (4,)), title=TALK))
    monkeypatch.setattr(plots, "_has_glyph", lambda character: True)
    assert plots._title(TALK, run(("fp32",), (4,))) == TALK


# --- the slides ---


@pytest.mark.parametrize("slide", plots.SLIDES)
def test_each_slide_is_tidy(slide: int) -> None:
    static_graph: dict[tuple[str, int], Status] = {(STATIC, 128): "oom", (STATIC, 256): "oom", ("fp32", 256): "oom"}
    figure = plots.slide_chart(run(missing=static_graph), slide)
    assert_tidy(figure)
    assert words(figure)[0].startswith(f"Slide {slide}: ")


@pytest.mark.parametrize(("slide", "n_configs"), [(12, 2), (21, 3), (27, 4), (31, 5), (33, 3)])
def test_a_slide_compares_what_the_talk_compared(slide: int, n_configs: int) -> None:
    assert len(bars(plots.slide_chart(run(batch_sizes=(32, 64)), slide))) == 2 * n_configs


def test_a_slide_knows_a_config_by_its_rungs_in_any_order() -> None:
    figure = plots.slide_chart(run(("fp32", "fp16", "fp16+batched+nhwc+fused+dali"), (4,)), 27)
    assert len(bars(figure)) == 3


def test_best_is_the_fastest_whatever_its_dtype_and_says_what_it_is() -> None:
    records = [make_record("fp32", 4, images_per_s=40), make_record("fp16", 4, images_per_s=30)]
    records += [make_record("fp32+dali", 4, images_per_s=60), make_record(BATCHED, 4, images_per_s=50)]
    records += [make_record("fp32", 8, images_per_s=40), make_record(BATCHED, 8, images_per_s=80)]
    figure = plots.slide_chart(summarise(records), 33)
    legend = [text.get_text() for text in texts(figure) if text.get_gid() == "legend"]
    assert legend[2:] == ["best at 4: fp32 + dali", "best at 8: fp16 + dali + batched + nhwc + fused"]
    assert [text.split("\n")[:2] for text in words(figure) if text.startswith("best\n")] == [
        ["best", "1.50×"],
        ["best", "2.00×"],
    ]
    assert_tidy(figure)


def test_a_slide_names_the_cells_that_are_missing() -> None:
    summaries = (*run(("fp32",), (4, 8)), *run(("fp16",), (8,)))
    assert "not run: fp16 at 4" in words(plots.slide_chart(summaries, 12))


def test_a_slide_of_which_nothing_was_run_is_one_clear_line() -> None:
    with pytest.raises(SelectionError, match="--slide 12: no results of fp32, fp16"):
        plots.slide_chart(run(("fp32+dali",)), 12)
    with pytest.raises(SelectionError, match="--slide 13: expected one of 12, 21, 27, 31, 33"):
        plots.slide_chart(run(), 13)


# --- the ladder ---


@pytest.mark.parametrize("batch_sizes", [(4,), (4, 8), (32, 64, 128, 256), (1, 2, 4, 8, 16, 32)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e7])
def test_the_ladder_is_tidy(batch_sizes: tuple[int, ...], scale: float) -> None:
    missing = {("fp32", batch_sizes[-1]): "oom", (BATCHED, batch_sizes[0]): "failed"}
    figure = plots.ladder_chart(run(batch_sizes=batch_sizes, scale=scale, missing=missing))  # type: ignore[arg-type]
    assert_tidy(figure)
    assert len(figure.axes) == 2 * len(batch_sizes)


def test_the_ladder_of_two_machines_is_tidy() -> None:
    summaries = (*run(), *run(batch_sizes=(4, 8), environment=make_environment()))
    assert_tidy(plots.ladder_chart(summaries))


def test_gains_and_losses_carry_sign_and_colour_and_doubt_is_pale() -> None:
    rates = {"fp16": 100, "fp16+dali": 150, "fp16+dali+batched": 120, BATCHED: 120.1}
    records = [make_record(config, images_per_s=value, noise=0.005) for config, value in rates.items()]
    figure = plots.ladder_chart(summarise(records))
    said = [text for text in words(figure) if "×" in text and text[0] in "+−"]
    assert [text[0] for text in said[:2]] == ["+", "−"]
    assert [text.split()[1] for text in said] == ["1.50×", "0.80×", "1.00×"]
    colours = [msgspec.convert(patch.get_facecolor(), tuple[float, ...], strict=False) for patch in bars(figure)]
    shown = ["#" + "".join(f"{round(255 * channel):02x}" for channel in colour[:3]) for colour in colours]
    assert shown[0] == plots.fill("fp16").colour and shown[-1] == plots.fill(BATCHED).colour
    assert shown[1:3] == [plots.GAIN, plots.LOSS]
    assert shown[3] in (plots.GAIN_PALE, plots.LOSS_PALE)
    assert bars(figure)[2].get_hatch() and not bars(figure)[1].get_hatch()


def test_no_ladder_is_one_clear_line() -> None:
    with pytest.raises(SelectionError, match="no ladder in these results"):
        plots.ladder_chart(run(("fp32", "fp16")))
    with pytest.raises(SelectionError, match="no results to plot"):
        plots.ladder_chart([])


# --- colours ---

# Full dichromacy: G. Machado, M. Oliveira and L. Fernandes, "A Physiologically-based Model for Simulation of Color
# Vision Deficiency", IEEE TVCG 15(6), 2009, table 1 at severity 1.0; they act on linear RGB.
SIGHT = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of linear sRGB."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    delta = 6 / 29
    f = np.where(xyz > delta**3, np.cbrt(xyz), xyz / (3 * delta**2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def closest(colours: Sequence[str], sight: str) -> float:
    """The smallest distance of two colours as seen, in units of L*a*b* (2 to 3 is the least one notices)."""
    seen = [lab(SIGHT[sight] @ linear(colour)) for colour in colours]
    return min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))


@pytest.mark.parametrize("sight", SIGHT)
def test_the_ladders_colours_stay_apart_for_every_kind_of_sight(sight: str) -> None:
    assert closest([plots.fill(config).colour for config in LADDERS], sight) > 13


@pytest.mark.parametrize("sight", SIGHT)
def test_gain_and_loss_stay_apart_for_every_kind_of_sight(sight: str) -> None:
    assert closest([plots.GAIN, plots.LOSS, plots.GAIN_PALE, plots.LOSS_PALE], sight) > 13


def test_the_ladders_colours_differ_in_greyscale() -> None:
    lightness = sorted(lab(linear(plots.fill(config).colour))[0] for config in LADDERS)
    assert min(b - a for a, b in itertools.pairwise(lightness)) > 5


@given(st.lists(st.sampled_from(["dali", "cuda_graph", "opencv", "x"]), max_size=4, unique=True))
def test_any_other_config_has_a_hatch_and_its_dtypes_hue(rungs: list[str]) -> None:
    name = "+".join(["fp16", *rungs])
    fill = plots.fill(name)
    assert fill.colour in plots.RAMPS["fp16"]
    assert (fill.hatch is None) == (rungs in ([], ["dali"]))


def test_a_configs_fill_is_the_same_in_every_process() -> None:
    assert plots.fill("fp16+cuda_graph") == plots.Fill("#e78a0f", "oooo")
    assert plots.fill("fp16+my_own_rung") == plots.Fill("#e78a0f", "||||")
    assert plots.fill("tf32").colour in plots.RAMPS["other"]


def test_configs_one_rung_away_from_a_ladder_are_told_apart() -> None:
    rungs = ("opencv", "dali", "batched", "nhwc", "fused", "static_graph", "cuda_graph")
    below_the_top = [config for config in LADDERS if "static_graph" not in config]
    configs = [f"{base}+{rung}" for base in below_the_top for rung in rungs if rung not in base]
    names = sorted({*configs, *LADDERS})
    by_fill = {plots.fill(name): name for name in names}
    assert len(by_fill) == len(names)


# --- files ---


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_a_chart_written_twice_is_the_same_file(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / "new" / f"{i}{suffix}" for i in range(2)]
    for path in paths:
        plots.save(plots.throughput_chart(run(LADDERS[:2], (4,)), title=TALK), path)
    one, other = (path.read_bytes() for path in paths)
    assert one == other
    assert one.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()])


def test_a_png_is_wide_enough_to_read(tmp_path: Path) -> None:
    from PIL import Image

    plots.save(plots.throughput_chart(run(), title="T"), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.width == 1600


def test_another_suffix_is_refused_with_those_that_work() -> None:
    figure = plots.throughput_chart(run(("fp32",), (4,)), title="T")
    for name in ("chart.jpg", "chart"):
        with pytest.raises(SelectionError, match=r"expected a file name that ends in \.png, \.svg, \.pdf"):
            plots.save(figure, Path(name))


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    figure = plots.throughput_chart(run(("fp32",), (4,)), title="T")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/chart\.png: cannot be written \(Not a directory\)"):
        plots.save(figure, tmp_path / "file" / "chart.png")


# --- numbers ---


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (2e-6, "2.00µ"),
        (0.0123, "0.0123"),
        (4.561, "4.56"),
        (78.94, "78.9"),
        (1234.4, "1234"),
        (9.999, "10.0"),
        (9999.6, "10.0k"),
        (12345, "12.3k"),
        (4.56e6, "4.56M"),
    ],
)
def test_numbers_have_three_digits(value: float, said: str) -> None:
    assert plots._number(value) == said


@given(st.floats(1e-9, 1e12))
def test_a_number_is_short_and_near_the_value(value: float) -> None:
    said = plots._number(value)
    factor = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}.get(said[-1], 1.0)
    assert len(said) <= 6
    assert math.isclose(float(said.rstrip("nµmkMG")) * factor, value, rel_tol=0.006)


def test_a_record_without_counted_steps_is_said_to_have_none() -> None:
    record: Record = make_record(measurement=make_measurement((0.1,)))
    assert "no counted steps" in words(plots.throughput_chart(summarise([record]), title="T"))
