"""Colours stay apart for every kind of sight, and a config's fill is its own."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from factories import LADDERS
from hypothesis import given
from hypothesis import strategies as st

from tcbench.run import scenario
from tcbench.show.charts import palette
from tcbench.show.charts.palette import PHASE_COLOURS, RAMPS, SERIES, Fill, family, fill

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


PLAIN, HATCHED = ([each.colour for each in SERIES if bool(each.hatch) is hatched] for hatched in (False, True))
TOGETHER = {
    "a ladder": [fill(config).colour for config in LADDERS],
    "gain and loss": [palette.GAIN, palette.LOSS, palette.GAIN_PALE, palette.LOSS_PALE],
    "a series": PLAIN,
    "a series' hatched": HATCHED,
    "a timeline": [*PHASE_COLOURS.values(), palette.OTHER, palette.COPY],
}
"""Colours that stand in one chart."""


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("dtype", TOGETHER)
def test_colours_stay_apart_for_every_kind_of_sight(dtype: str, sight: str) -> None:
    assert closest(TOGETHER[dtype], sight) > 13


@pytest.mark.parametrize("dtype", ["a ladder", "a series", "a series' hatched"])
def test_colours_differ_in_greyscale(dtype: str) -> None:
    lightness = sorted(lab(linear(colour))[0] for colour in TOGETHER[dtype])
    assert min(b - a for a, b in itertools.pairwise(lightness)) > 5


@given(st.lists(st.sampled_from(["dali", "cuda_graph", "opencv", "x"]), max_size=4, unique=True))
def test_any_other_config_has_a_hatch_and_its_dtypes_hue(rungs: list[str]) -> None:
    name = "+".join(["fp16", *rungs])
    filled = fill(name)
    assert filled.colour in RAMPS["fp16"]
    assert (filled.hatch is None) == (rungs in ([], ["dali"]))


def test_a_configs_fill_is_the_same_in_every_process() -> None:
    assert fill("fp16+cuda_graph") == Fill("#e78a0f", "oooo")
    assert fill("fp16+my_own_rung") == Fill("#e78a0f", "||||")
    assert fill("tf32").colour in RAMPS["other"]


def test_configs_one_rung_away_from_a_ladder_stand_apart() -> None:
    rungs = ("opencv", "dali", "batched", "nhwc", "fused", "static_graph", "cuda_graph")
    below_the_top = [config for config in LADDERS if "static_graph" not in config]
    configs = [f"{base}+{rung}" for base in below_the_top for rung in rungs if rung not in base]
    names = sorted({*configs, *LADDERS})
    by_fill = {fill(name): name for name in names}
    assert len(by_fill) == len(names)


@pytest.mark.parametrize("name", ["beyond", "settings"])
def test_the_configs_of_a_scenario_stand_apart_and_keep_their_dtypes_hue(name: str) -> None:
    configs = scenario.load(name).configs
    assert len({fill(config.name) for config in configs}) == len(configs)
    assert all(family(config.name) == family(config.rungs[0]) for config in configs)


def test_leaving_any_one_rung_out_of_a_ladders_top_shows() -> None:
    first, *rungs = LADDERS[-1].split("+")
    names = ["+".join([first, *(rung for rung in rungs if rung != left_out)]) for left_out in rungs]
    assert len({fill(name) for name in names}) == len(names)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_our_configs_and_a_peers_stand_apart(kind: str) -> None:
    configs = [config.name for config in scenario.load("peers").on(kind).configs]
    assert len({fill(config) for config in configs}) == len(configs)
    default_colours = {fill(config).colour for config in configs if "/" not in config}
    peers = {fill(config).colour for config in configs if "/" in config}
    distances = [closest([colour, other], sight) for colour in default_colours for other in peers for sight in SIGHT]
    assert min(distances) > 10


def test_a_peers_config_has_its_dtypes_family_and_is_not_ours() -> None:
    for config in ("fp32", "fp16+dali", "bf16+nhwc", "tf32"):
        assert family(f"torch/{config}") == family(config)
        assert fill(f"torch/{config}") != fill(config)
        assert fill(f"torch/{config}") == fill(f"mine/{config}")


def test_hatches_of_a_series_differ() -> None:
    assert len({each.hatch for each in SERIES if each.hatch}) == 3
