from __future__ import annotations

import itertools
import re

import factories
import pytest

from tcbench.show.charts.palette import fill
from tcbench.show.page import colours
from tcbench.show.page.colours import Palette


def test_a_config_has_the_colour_that_it_has_in_every_chart():
    palette = Palette.of([*factories.LADDERS, "fp32+opencv", "fp32"])
    for config in palette.configs:
        look = palette.look(config)
        assert f".{look.css}{{--fill:light-dark({fill(config).colour}," in palette.css
        assert bool(look.hatch) == bool(fill(config).hatch)
    assert palette.look("fp32+opencv").hatch in {hatch.id for hatch in palette.hatches}


def test_a_name_never_becomes_part_of_the_style():
    palette = Palette.of(["}</style><script>", "*/ a"])
    assert re.fullmatch(r"[\w\s.#{}():,;-]*", palette.css)


@pytest.mark.parametrize("colour", ["#0b3986", "#591012", "#a3ddf6", "#fabc2d", "#000000", "#ffffff"])
def test_another_lightness_keeps_the_channels_within_their_range(colour):
    assert re.fullmatch("#[0-9a-f]{6}", colours.lifted(colour))
    assert re.fullmatch("#[0-9a-f]{6}", colours.shaded(colour, 0.9))
    assert colours.shaded(colour, 0.0) == colour


def test_on_a_dark_page_the_order_of_lightness_stays_and_nothing_is_too_dark():
    def lightness(colour):
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for ladder in (factories.LADDERS[:5], factories.LADDERS[5:]):
        lifted = [lightness(colours.lifted(fill(config).colour)) for config in ladder]
        assert all(before > after for before, after in itertools.pairwise(lifted))
        assert min(lifted) > 75


def test_marks_of_a_hatch_become_lines_and_points():
    [hatch, *_] = Palette.of(["fp32+opencv"]).hatches
    assert hatch.id == "h0" and hatch.paths and not hatch.dots
