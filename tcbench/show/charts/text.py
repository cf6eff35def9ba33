"""Fonts and sizes of charts, and texts measured in inches, to wrap or shorten them before they are placed."""

import bisect
import functools
import logging
from collections.abc import Callable
from typing import Any

from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

logging.getLogger(font_manager.__name__).setLevel(logging.ERROR)  # such as: a font has no bold face

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
"""Font sizes in points."""

DPI = 160
"""A chart is 10 inches wide, so a PNG has 1600 pixels across."""


@functools.cache
def families() -> tuple[str, ...]:
    """Return the fonts in use: matplotlib's own, and a Japanese one if the machine has one."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return (_LATIN, *[name for name in _CJK if name in installed][:1])


@functools.cache
def has_glyph(character: str) -> bool:
    """Return whether a font in use can draw the character."""
    for name in families():
        face = font_manager.get_font(font_manager.findfont(FontProperties(family=name)))
        if face.get_char_index(ord(character)):
            return True
    return False


def drawable(text: str) -> str:
    """Return a text as one line that fonts can draw: other characters become "?", and very long texts are cut."""
    text = _capped(text, _LONGEST_TEXT)
    return "".join(c if has_glyph(c) else "?" for c in " ".join(text.split()))


_LONGEST_NAME, _LONGEST_TEXT = 120, 4000
"""Limits in characters for a config's name and for any text, since measuring a very long text is slow."""


def config_name(text: str) -> str:
    """Return a config's name with spaces around "+", so that it can wrap, cut if it is very long."""
    return _capped(drawable(text.replace("+", " + ")), _LONGEST_NAME)


def drawable_title(text: str, fallback: str) -> str:
    """Return a title, or the fallback if fonts cannot draw it."""
    text = " ".join(text.split())
    return text if all(map(has_glyph, text)) else drawable(fallback)


@functools.cache
def _renderer() -> Any:
    return FigureCanvasAgg(Figure(figsize=(1, 1), dpi=DPI)).get_renderer()  # type: ignore[no-untyped-call]


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return the width of a line in inches. Only the beginning of a very long line is measured."""
    return _width(text[:_LONGEST_TEXT], size, bold)


@functools.lru_cache(4096)
def _width(text: str, size: float, bold: bool) -> float:
    font = FontProperties(family=list(families()), size=size, weight="bold" if bold else "normal")
    width, _, _ = _renderer().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / DPI


def line_height(size: float) -> float:
    """Return the height of a line with its spacing, in inches."""
    return size * 1.35 / 72


def wrapped(text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Wrap a text of this font size (points) to lines of at most `width` inches.

    A word that is wider than a line is cut, which also wraps Japanese text, since that has no spaces."""
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
            cut = max(1, _fitting_length(line, lambda part: text_width(part, size, bold) <= width))
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line] if line else lines


def wrapped_facts(text: str, size: float, width: float) -> list[str]:
    """Wrap facts separated by middle dots to lines of `width` inches. A fact wraps only if it is wider than a line."""
    lines: list[str] = []
    for fact in text.split(" · "):
        if lines and text_width(f"{lines[-1]} · {fact}", size) <= width:
            lines[-1] += f" · {fact}"
        else:
            lines += wrapped(fact, size, width)
    return lines


def shortened(text: str, size: float, width: float) -> str:
    """Shorten a text to `width` inches, with an ellipsis if something is cut."""
    text = _capped(text, _LONGEST_TEXT)
    if text_width(text, size) <= width:
        return text
    n = _fitting_length(text, lambda part: text_width(part.rstrip() + "…", size) <= width)
    return text[:n].rstrip(" :,;") + "…" if n else ""


def _capped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip(' +')}…"


def _fitting_length(text: str, fits: Callable[[str], bool]) -> int:
    """Return the length of the longest beginning of a text that fits, at most one less than the whole text. `fits` must
    be false for every beginning that is longer than one that does not fit."""
    return bisect.bisect_left(range(1, len(text)), True, key=lambda n: not fits(text[:n]))
