import re
from xml.etree import ElementTree as ET

import factories
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from tcbench.analysis.summary import summarise
from tcbench.commands.run.chart import throughput_chart
from tcbench.show.charts.inline import colours, svg, tooltip, variable
from tcbench.show.charts.palette import fill


def drawn(figure, prefix="a"):
    return ET.fromstring(svg(figure, label="A chart", prefix=prefix))


def bars(*heights, **look):
    figure = Figure()
    axes = figure.add_subplot()
    axes.set_axis_off()
    return figure, axes.bar(range(len(heights)), heights, **look)


def throughput(*configs):
    return throughput_chart(summarise([r for config in configs for r in factories.make_trials(config)]))


def test_the_same_figure_gives_the_same_markup_without_styles_or_addresses():
    first, other = (svg(throughput("fp32", "fp32+opencv"), label="a", prefix="b") for _ in range(2))
    assert first == other
    assert "style" not in first and "http" not in first


def test_ids_of_several_charts_on_a_page_differ_and_every_reference_has_its_own():
    charts = [svg(throughput("fp32+opencv"), label="a", prefix=prefix) for prefix in ("one", "other")]
    ids = [re.findall(r' id="([^"]*)"', chart) for chart in charts]
    assert ids[0] and not set(ids[0]) & set(ids[1])
    for chart, its_ids in zip(charts, ids, strict=True):
        assert len(its_ids) == len(set(its_ids))
        assert set(re.findall(r"url\(#([^)]*)\)|href=\"#([^\"]*)\"", chart)) <= {(name, "") for name in its_ids} | {
            ("", name) for name in its_ids
        }


def test_a_colour_is_a_variable_with_a_value_for_the_light_and_the_dark_page():
    colour = fill("fp32").colour
    chart = svg(bars(1.0, color=colour)[0], label="a", prefix="b")
    assert f'fill="{variable(colour)}"' in chart
    assert f"{variable(colour)[4:-1]}:light-dark({colour},oklch(from {colour} " in colours([chart])
    assert variable("#ffffff") == "var(--page)" and "ffffff" not in colours([chart])


def test_a_hatch_keeps_an_ink_that_stands_out_on_its_ground():
    chart = svg(throughput("fp32", "fp32+opencv"), label="a", prefix="b")
    [pattern] = ET.fromstring(chart).iter("pattern")
    assert pattern[0].attrib["fill"] == variable(fill("fp32+opencv").colour)
    assert pattern[1].attrib["stroke"] == "var(--on-light)"


def test_a_marked_artist_has_a_tooltip():
    figure, container = bars(1.0, 2.0)
    tooltip(container[1], "fp32, batch size 4\n40.0 images/s\u202e\x00")
    [title] = drawn(figure).iter("title")
    assert title.text == "fp32, batch size 4\n40.0 images/s\\u202e\\x00"


@pytest.mark.parametrize("texts", [("one",), ("one", "two")])
def test_a_collection_has_one_tooltip_or_one_for_each_shape(texts):
    figure = Figure()
    shapes = [[(x, 0), (x + 0.5, 0), (x + 0.5, 1)] for x in (0, 1)]
    collection = figure.add_subplot().add_collection(PolyCollection(shapes))
    tooltip(collection, *texts)
    root = drawn(figure)
    assert [title.text for title in root.iter("title")] == list(texts)
    assert {element.tag for element in root.iter() if element.get("class") == "tooltip"} == {
        "g" if len(texts) == 1 else "path"
    }


def test_a_tooltip_needs_a_figure():
    _, [bar] = bars(1.0)
    bar.remove()
    with pytest.raises(ValueError, match="stands in a figure"):
        tooltip(bar, "gone")
