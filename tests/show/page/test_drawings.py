import re

import factories
from matplotlib.figure import Figure

from tcbench.core.errors import SelectionError
from tcbench.show.charts.inline import variable
from tcbench.show.charts.palette import fill
from tcbench.show.page import drawings
from tcbench.show.page.drawings import Swatches
from tcbench.show.tables import Table

TABLE = Table((), ())


def test_a_swatch_has_the_fill_that_its_config_has_in_every_chart():
    swatches = Swatches((*factories.LADDERS, "fp32+opencv", "fp16+opencv", "fp32+opencv+x"))
    for config in factories.LADDERS:
        assert swatches.paint(config) == variable(fill(config).colour)
    patterns = dict(re.findall(r'<pattern [^>]*id="([^"]*)"[^>]*>\s*<rect [^>]*fill="([^"]*)"', swatches.hatches))
    for config in swatches.configs[len(factories.LADDERS) :]:
        name = re.fullmatch(r"url\(#(.*)\)", swatches.paint(config))
        assert name and patterns[name[1]] == variable(fill(config).colour)


def test_a_chart_wider_than_the_page_says_so():
    assert not drawings.figure(lambda: Figure(figsize=(10, 2)), "a", "b", TABLE).drawn.wide
    assert drawings.figure(lambda: Figure(figsize=(18, 2)), "a", "b", TABLE).drawn.wide


def test_what_cannot_be_drawn_says_why_in_the_place_of_the_chart():
    def none() -> Figure:
        raise SelectionError("nothing of <b> to draw")

    assert drawings.figure(none, "a", "b", TABLE).drawn.svg == "<p>nothing of &lt;b&gt; to draw</p>"


def test_a_name_never_becomes_markup():
    figure = Figure()
    figure.text(0, 0, "</svg><script>alert(1)</script>")
    svg = drawings.figure(lambda: figure, '"><script>', "b", TABLE).drawn.svg
    assert "<script" not in svg and "&lt;/svg&gt;&lt;script&gt;" in svg
