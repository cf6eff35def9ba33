"""Fonts, and texts measured in inches, so that they can be broken or shortened before they are placed.

Owns the type scale and the resolution. Knows nothing of what a text says, and nothing of figures but how wide a line
comes out in one.
"""

import bisect
import functools
import logging
from collections.abc import Callable
from typing import Any

from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

logging.getLogger(font_manager.__name__).setLevel(logging.ERROR)  # that a font has no bold is no news for a terminal

_LATIN = "DejaVu Sans"  # comes with matplotlib
_CJK = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Source Han Sans JP",
    "IPAexGothic",
    "IPAPGothic",
    "IPAGothic",
    "TakaoPGothic",
    "VL PGothic",
    "BIZ UDPGothic",
    "Yu Gothic",
    "Meiryo",
    "MS Gothic",
    "Hiragino Sans",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
)

TITLE, SUBTITLE, LABEL, LEGEND, WORDS, SMALL = 15.0, 10.0, 9.0, 8.5, 7.5, 7.0
"""The type scale, in points."""

DPI = 160
"""A chart is 10 inches wide, so a PNG has 1600 pixels across."""


@functools.cache
def families() -> tuple[str, ...]:
    """Fonts in use: matplotlib's own, then a Japanese one where the machine has one."""
    there = {entry.name for entry in font_manager.fontManager.ttflist}
    return (_LATIN, *[name for name in _CJK if name in there][:1])


@functools.cache
def has_glyph(character: str) -> bool:
    """Whether a font in use can draw the character."""
    for name in families():
        face = font_manager.get_font(font_manager.findfont(FontProperties(family=name)))
        if face.get_char_index(ord(character)):
            return True
    return False


def drawable(text: str) -> str:
    """One line in which every character can be drawn, cut where it is longer than any chart is wide."""
    text = _capped(text, _LONGEST_TEXT)
    return "".join(c if has_glyph(c) else "?" for c in " ".join(text.split()))


_LONGEST_NAME, _LONGEST_TEXT = 120, 4000
"""Characters of a config's name and of any text. A record may hold more, and every one of them would be measured."""


def config_name(text: str) -> str:
    """As much of a config's name as a chart has room for: it is whatever a record says. May be broken between rungs."""
    return _capped(drawable(text.replace("+", " + ")), _LONGEST_NAME)


def heading(text: str, instead: str) -> str:
    """A title, or what stands in for it where the fonts here cannot write it."""
    text = " ".join(text.split())
    return text if all(map(has_glyph, text)) else drawable(instead)


@functools.cache
def _renderer() -> Any:
    return FigureCanvasAgg(Figure(figsize=(1, 1), dpi=DPI)).get_renderer()  # type: ignore[no-untyped-call]


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of a line, inches; of one that is longer than any chart is wide, that of its beginning."""
    return _width(text[:_LONGEST_TEXT], size, bold)


@functools.lru_cache(4096)
def _width(text: str, size: float, bold: bool) -> float:
    font = FontProperties(family=list(families()), size=size, weight="bold" if bold else "normal")
    width, _, _ = _renderer().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / DPI


def line_height(size: float) -> float:
    """Height of a line with its leading, inches."""
    return size * 1.35 / 72


def wrapped(text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Lines no wider than `width` inches; a word that is wider by itself is cut, as Japanese is."""
    lines, line = [], ""
    for word in _capped(text, _LONGEST_TEXT).split():
        longer = f"{line} {word}" if line else word
        if text_width(longer, size, bold) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        line = word
        while text_width(line, size, bold) > width and len(line) > 1:
            cut = max(1, _fitting(line, lambda part: text_width(part, size, bold) <= width))
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line] if line else lines


def wrapped_facts(text: str, size: float, width: float) -> list[str]:
    """Lines of facts parted by middle dots; a fact is broken only when it is wider than a line."""
    lines: list[str] = []
    for fact in text.split(" · "):
        if lines and text_width(f"{lines[-1]} · {fact}", size) <= width:
            lines[-1] += f" · {fact}"
        else:
            lines += wrapped(fact, size, width)
    return lines


def shortened(text: str, size: float, width: float) -> str:
    """The text, or as much of its beginning as `width` inches take, with an ellipsis."""
    text = _capped(text, _LONGEST_TEXT)
    if text_width(text, size) <= width:
        return text
    n = _fitting(text, lambda part: text_width(part.rstrip() + "…", size) <= width)
    return text[:n].rstrip(" :,;") + "…" if n else ""


def _capped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip(' +')}…"


def _fitting(text: str, fits: Callable[[str], bool]) -> int:
    """Count the first characters that fit, fewer than all: a longer beginning is a wider one."""
    return bisect.bisect_left(range(1, len(text)), True, key=lambda n: not fits(text[:n]))
