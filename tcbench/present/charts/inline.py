"""A figure as SVG within an HTML page: text as text, colours as CSS variables, and tooltips.

Owns the way from a matplotlib figure to markup. Knows nothing of what a figure shows, nor of the page but the few
variables that its style sheet defines: --ink, --quiet, --grid and --page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary
from xml.etree import ElementTree as ET

import matplotlib
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from tcbench.core.text import plain
from tcbench.present.charts.palette import FAINT, INK, ON_LIGHT, QUIET

_TOOLTIPS: WeakKeyDictionary[Figure, dict[str, tuple[str, ...]]] = WeakKeyDictionary()

_PAGE_COLOURS = {INK: "--ink", QUIET: "--quiet", FAINT: "--grid", ON_LIGHT: "--on-light", "#ffffff": "--page"}
"""Colours that the page has variables for."""

_KEPT = (
    *("fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "stroke-linejoin"),
    *("stroke-dasharray", "stroke-dashoffset", "opacity", "font-size", "font-weight", "font-style", "text-anchor"),
)
"""Properties of matplotlib's style attributes, which a page's policy forbids, that are attributes of SVG as well."""

_ROOT = {"role": "img", "stroke-linejoin": "round", "fill": "var(--ink)"}
_HATCH_TILE = 24.0
"""Side of a hatch's tile. Matplotlib's has 72; all its hatches repeat themselves after 24 divided by their density."""


def tooltip(artist: Artist, *texts: str) -> None:
    """Give an artist that stands in a figure a tooltip on the page: what is seen on it, line by line divided by "\\n".

    A collection takes one text for each of its shapes, or one for all. Elsewhere than on a page nothing of it shows.
    """
    figure = artist.get_figure(root=True)
    if figure is None:
        raise ValueError("a tooltip needs an artist that stands in a figure")
    texts_by_id = _TOOLTIPS.setdefault(figure, {})
    name = f"tooltip-{len(texts_by_id) + 1}"
    artist.set_gid(name)
    texts_by_id[name] = texts


def svg(figure: Figure, *, label: str, prefix: str, trim: float = 0.0) -> str:
    """The figure as an SVG element: the same markup for the same figure.

    `label` says what it shows to those who do not see it; `prefix` begins all of its ids, which are those of one chart
    on a page. `trim` inches of its margin are left out at each side: a page has its own. Widths are those of the fonts
    that charts are laid out with, so the page's may be narrower, not wider.
    """
    data = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "tcbench", "svg.fonttype": "none"}):
        figure.savefig(data, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(data.getvalue())
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    _remove_boilerplate(root)
    names = {name: f"{prefix}-{n}" for n, name in enumerate(sorted(_referenced(root)))}
    _write_tooltips(root, _TOOLTIPS.get(figure, {}))
    for element in root.iter():
        if element.tag == "pattern":
            _shrink_hatch(element)
        _rewrite(element, names)
    _tidied(root)
    left, *size = (round(72 * inches, 2) for inches in (trim, *(figure.get_size_inches() - 2 * trim)))
    view_box = " ".join(f"{length:g}" for length in (left, left, *size))
    root.attrib = {"viewBox": view_box, "width": f"{size[0] / 0.75:.0f}", "aria-label": label, **_ROOT}
    return ET.tostring(root, encoding="unicode")


def colours(charts: Iterable[str]) -> str:
    """The style sheet of the variables that charts use, light and dark.

    On a dark page a colour keeps its hue and order of lightness and becomes so light that black stands out on it; light
    greys become dark ones.
    """
    codes = sorted({code for chart in charts for code in re.findall(r"var\(--c-([0-9a-f]{6})\)", chart)})
    rules = "".join(f"--c-{code}:light-dark(#{code},{_on_dark_page(code)});" for code in codes)
    return f":root{{--on-dark:light-dark(#fff,#000);--on-light:{ON_LIGHT};{rules}}}"


def variable(colour: str) -> str:
    """The CSS value that stands for a colour ("#0b3986") on the page."""
    return f"var({_PAGE_COLOURS.get(colour) or f'--c-{colour[1:]}'})"


def _on_dark_page(code: str) -> str:
    channels = [int(code[i : i + 2], 16) for i in (0, 2, 4)]
    if max(channels) - min(channels) < 8 and min(channels) > 0xD0:  # the ground of something, not a series
        return f"oklch(from #{code} calc(1.2 - l) c h)"
    return f"oklch(from #{code} calc(.5 + .42 * l) c h)"


# -- from matplotlib's elements to the page's ----------------------------------------------------------------------


def _remove_boilerplate(root: ET.Element) -> None:
    """Metadata and the style element, whose one rule the root's attributes say."""
    for element in list(root):
        if element.tag == "metadata" or element.find("style") is not None:
            root.remove(element)


def _referenced(root: ET.Element) -> Iterator[str]:
    """Ids that something in the chart refers to."""
    for element in root.iter():
        for value in element.attrib.values():
            yield from re.findall(r"url\(#([^)]*)\)", value)
        href = element.get("{http://www.w3.org/1999/xlink}href")
        if href is not None:
            yield href.removeprefix("#")


def _write_tooltips(root: ET.Element, texts_by_id: dict[str, tuple[str, ...]]) -> None:
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


def _rewrite(element: ET.Element, names: dict[str, str]) -> None:
    """Short attributes in place of matplotlib's long ones."""
    old, new = element.attrib, dict[str, str]()
    if "class" in old:
        new["class"] = old["class"]
    if old.get("id") in names:
        new["id"] = names[old["id"]]
    style = dict(part.strip().split(": ", 1) for part in old.get("style", "").split(";") if part.strip())
    if "font" in style:  # matplotlib before 3.10: "bold 10px 'DejaVu Sans'"
        weight, size = re.match(r"(.*?)([\d.]+px)", style["font"]).groups()  # type: ignore[union-attr]
        style |= {"font-size": size, **({"font-weight": weight.strip()} if weight.strip() else {})}
    for name, value in {**{k: v for k, v in old.items() if k not in ("id", "class", "style")}, **style}.items():
        if name.endswith("}href"):
            new["href"] = f"#{names[value[1:]]}"
        elif name in ("fill", "stroke"):
            new[name] = _colour(value, element.tag, names)
        elif name == "d":
            new["d"] = _shorter_path(value)
        elif name == "clip-path":
            new[name] = _renamed(value, names)
        elif name == "transform":
            if not value.startswith("rotate(-0 "):
                new[name] = _rounded(value)
        elif name in ("x", "y", "width", "height", "r", "cx", "cy"):
            new[name] = _rounded(value)
        elif name in _KEPT or name == "patternUnits":
            new[name] = value.removesuffix("px")
    for name, default in (("stroke-linejoin", "round"), ("stroke-linecap", "butt")):
        if new.get(name) == default:
            del new[name]
    element.attrib = new
    element.tail = None
    if element.tag not in ("text", "tspan", "title"):
        element.text = None


def _colour(value: str, tag: str, names: dict[str, str]) -> str:
    if value.startswith("url("):
        return _renamed(value, names)
    if not value.startswith("#"):
        return value
    if tag == "text" and value == "#ffffff":
        return "var(--on-dark)"
    return variable(value)


def _renamed(value: str, names: dict[str, str]) -> str:
    return re.sub(r"#([^)]*)", lambda match: f"#{names[match[1]]}", value)


def _rounded(value: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda match: _short(float(match[0])), value)


def _shorter_path(path: str) -> str:
    """A path with two decimals; lines along an axis are H and V and go on where they can, circles are arcs."""
    return "".join(map(_circle_or_lines, re.findall(r"M[^M]*", path)))


def _circle_or_lines(path: str) -> str:
    commands = [
        (command, [float(number) for number in numbers.split()])
        for command, numbers in re.findall(r"([MLCQz])([^MLCQz]*)", path)
    ]
    if [command for command, _ in commands] == [*"MCCCCCCCCz"]:  # matplotlib's circle
        x, y = ([numbers[i] for _, numbers in commands if numbers] for i in (-2, -1))
        radius, left, middle = (max(x) - min(x)) / 2, min(x), (max(y) + min(y)) / 2
        arc = f"a{radius:.4g} {radius:.4g} 0 1 0"
        return f"M{_short(left)} {_short(middle)}{arc} {2 * radius:.4g} 0{arc} {-2 * radius:.4g} 0z"
    parts: list[str] = []
    at = before = (0.0, 0.0)
    for command, numbers in commands:
        if command != "L":
            parts.append(command + " ".join(map(_short, numbers)))
            at = before = (round(numbers[-2], 2), round(numbers[-1], 2)) if numbers else at
            continue
        to = round(numbers[0], 2), round(numbers[1], 2)
        same = [to[0] == at[0], to[1] == at[1]]
        if all(same):
            continue
        if not any(same):
            parts.append(f"L{_short(to[0])} {_short(to[1])}")
            before = at
        else:
            along, letter = (0, "H") if same[1] else (1, "V")
            goes_on = parts[-1][0] == letter and (at[along] - before[along]) * (to[along] - at[along]) > 0
            parts[-1 if goes_on else len(parts) :] = [f"{letter}{_short(to[along])}"]
            before = before if goes_on else at
        at = to
    return "".join(parts)


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _shrink_hatch(pattern: ET.Element) -> None:
    """Cut a hatch's tile to what repeats itself, and give its lines the ink that stands out on its ground."""
    pattern.attrib |= {"width": f"{_HATCH_TILE:g}", "height": f"{_HATCH_TILE:g}"}
    ground, lines = pattern
    ground.attrib |= {"width": f"{_HATCH_TILE:g}", "height": f"{_HATCH_TILE:g}"}
    subpaths = re.findall(r"M[^M]*", lines.attrib["d"])
    lines.set("d", "".join(filter(_crosses_tile, subpaths)))
    on_page = ground.get("fill") == "#ffffff"
    inks = {"#ffffff": "var(--on-dark)", "#333333": "var(--ink)" if on_page else "var(--on-light)"}
    for colour, ink in inks.items():
        lines.set("style", lines.get("style", "").replace(colour, ink))


def _crosses_tile(subpath: str) -> bool:
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", subpath)]
    x, y = numbers[::2], numbers[1::2]
    low, high = -1.0, _HATCH_TILE + 1
    if max(x) < low or min(x) > high or max(y) < low or min(y) > high:
        return False
    corners = [(a, b) for a in (low, high) for b in (low, high)]
    turns = [(x[1] - x[0]) * (b - y[0]) - (y[1] - y[0]) * (a - x[0]) for a, b in corners]
    return len(x) > 2 or min(turns) <= 0 <= max(turns)


def _tidied(element: ET.Element) -> list[ET.Element]:
    """The element without what draws nothing; what it holds in place of a group that says nothing."""
    element[:] = [inner for child in element for inner in _tidied(child)]
    if element.tag == "path" and element.get("fill") == "none" and element.get("stroke", "none") == "none":
        return []
    if element.tag == "text" and not (element.text or len(element)):
        return []
    if element.tag in ("g", "defs") and not (element.attrib and len(element)):
        return list(element) if element.tag == "g" else [element] * bool(len(element))
    return [element]
