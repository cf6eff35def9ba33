"""Figures as SVG inside an HTML page: matplotlib's markup, with colours as CSS variables and with tooltips. The page's
style sheet must define the variables --ink, --quiet, --grid and --page."""

import io
import re
from collections.abc import Iterable
from weakref import WeakKeyDictionary
from xml.etree import ElementTree as ET

import matplotlib
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from tcbench.core.text import plain
from tcbench.core.variables import for_charts
from tcbench.show.charts.palette import FAINT, INK, ON_DARK, ON_LIGHT, PAPER, QUIET

_TOOLTIPS: WeakKeyDictionary[Figure, dict[str, tuple[str, ...]]] = WeakKeyDictionary()

_PAGE_COLOURS = {
    INK: "--ink",
    QUIET: "--quiet",
    FAINT: "--grid",
    PAPER: "--page",
    ON_LIGHT: "--on-light",
    ON_DARK: "--on-dark",
}
"""Colours that have a CSS variable of their own. The variable of any other colour is named by its code."""

_HATCH_TILE = 24
"""The size of a hatch's tile in points. Each of matplotlib's hatches repeats within it."""


def tooltip(artist: Artist, *texts: str) -> None:
    """Give an artist of a figure a tooltip, which shows on the HTML page only.

    A collection takes a text for each of its shapes, or one for all. Texts may have several lines."""
    figure = artist.get_figure(root=True)
    if figure is None:
        raise ValueError("a tooltip needs an artist that stands in a figure")
    texts_by_id = _TOOLTIPS.setdefault(figure, {})
    name = f"tooltip-{len(texts_by_id) + 1}"
    artist.set_gid(name)
    texts_by_id[name] = texts


def svg(figure: Figure, *, label: str, prefix: str, trim: float = 0.0) -> str:
    """Return a figure as an SVG element. The same figure always gives the same markup.

    `label` describes it for screen readers, `prefix` makes its ids unique on the page, and `trim` inches of margin are
    cut off at each side. Texts are as wide as in the fonts of charts; the page's fonts may be narrower, not wider."""
    buffer = io.BytesIO()
    width, height = figure.get_size_inches()
    box = Bbox([[trim, trim], [width - trim, height - trim]])
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with for_charts(), matplotlib.rc_context({"svg.hashsalt": "tcbench", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata, bbox_inches=box)
    root = ET.fromstring(buffer.getvalue())
    root.remove(next(element for element in root if element.find("*[@type='text/css']") is not None))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    _write_tooltips(root, _TOOLTIPS.get(figure, {}))
    for pattern in root.iter("pattern"):
        _crop(pattern)
    for element in root.iter():
        _rewrite(element, prefix)
        element.tail = None
        if element.tag in ("svg", "g", "defs", "pattern"):
            element.text = None
    root.attrib |= {"role": "img", "aria-label": label, "stroke-linejoin": "round", "fill": "var(--ink)"}
    return ET.tostring(root, encoding="unicode")


def colours(charts: Iterable[str]) -> str:
    """Return the style sheet that defines the colours in the markup of `charts` for light and dark pages.

    On a dark page a colour keeps its hue and becomes light enough for black text on it; light greys become dark."""
    codes = sorted({code for chart in charts for code in re.findall(r"var\(--c-([0-9a-f]{6})\)", chart)})
    rules = "".join(f"--c-{code}:light-dark(#{code},{_on_dark_page(code)});" for code in codes)
    return f":root{{--on-dark:light-dark(#fff,#000);--on-light:{ON_LIGHT};{rules}}}"


def variable(colour: str) -> str:
    """Return the CSS value for a colour such as "#0b3986"."""
    return f"var({_PAGE_COLOURS.get(colour) or f'--c-{colour[1:]}'})"


def _on_dark_page(code: str) -> str:
    """Return the CSS colour that replaces a colour of the chart on a dark page. Backgrounds become dark, series
    lighter."""
    channels = [int(code[i : i + 2], 16) for i in (0, 2, 4)]
    if max(channels) - min(channels) < 8 and min(channels) > 0xD0:  # a background, not a series
        return f"oklch(from #{code} calc(1.2 - l) c h)"
    return f"oklch(from #{code} calc(.5 + .42 * l) c h)"


def _write_tooltips(root: ET.Element, texts_by_id: dict[str, tuple[str, ...]]) -> None:
    """Add tooltips to the groups of shapes whose ids are keys of `texts_by_id`.

    Each shape gets a text if there are as many texts as shapes; if not, the group gets the first text."""
    for group in root.iter("g"):
        texts = texts_by_id.get(group.get("id", ""))
        if not texts:
            continue
        shapes = [element for element in group.iter() if element.tag in ("path", "use") and element.get("id") is None]
        owners = shapes if len(texts) == len(shapes) else [group]
        for owner, text in zip(owners, texts, strict=False):
            title = ET.Element("title")
            title.text = "\n".join(map(plain, text.split("\n")))
            owner.insert(0, title)
            owner.set("class", "tooltip")


def _rewrite(element: ET.Element, prefix: str) -> None:
    """Rewrite the attributes of an SVG element for the page, which forbids inline styles.

    Styles become attributes, colours become CSS variables, ids and references to them begin with `prefix`, and
    coordinates are rounded to two decimals."""
    for part in filter(str.strip, element.attrib.pop("style", "").split(";")):
        name, _, value = part.strip().partition(": ")
        element.set(name, value)
    element.attrib.pop("font-family", None)  # the page sets the font
    for name, value in [*element.attrib.items()]:
        if name == "id" and element.tag == "g":  # no reference to it
            del element.attrib[name]
        elif name == "id":
            element.set(name, f"{prefix}-{value}")
        elif name == "{http://www.w3.org/1999/xlink}href":
            del element.attrib[name]
            element.set("href", f"#{prefix}-{value[1:]}")
        elif value.startswith("url(#"):
            element.set(name, f"url(#{prefix}-{value[5:]}")
        elif name in ("fill", "stroke") and value.startswith("#"):
            element.set(name, variable(value))
        elif name in ("d", "x", "y", "transform"):  # two decimals are precise enough
            numbers = re.sub(r"\d+\.\d+", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), value)
            element.set(name, " ".join(numbers.split()))


def _crop(pattern: ET.Element) -> None:
    """Cut the tile of a hatch, which matplotlib makes 72 points wide, to `_HATCH_TILE`, after which it repeats.
    Hundreds of circles would bloat the page."""
    ground, marks = pattern
    for element in (pattern, ground):
        element.attrib |= {"width": f"{_HATCH_TILE}", "height": f"{_HATCH_TILE}"}
    marks.set("d", "".join(filter(_meets_tile, re.findall(r"M[^M]*", marks.attrib["d"]))))


def _meets_tile(subpath: str) -> bool:
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", subpath)]
    return all(min(along) < _HATCH_TILE + 1 and max(along) > -1 for along in (numbers[::2], numbers[1::2]))
