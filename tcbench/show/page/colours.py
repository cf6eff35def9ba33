"""Colours of configs and phases on the page: the charts' palette, lifted where the page is dark.

Owns the CSS classes that stand for fills. A config's hue, shade and hatch are those of every other chart; on a dark
page its lightness is moved up, so that the darkest shades stay visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tcbench.show.charts.palette import COPY, GAIN, GAIN_PALE, LOSS, LOSS_PALE, OTHER, PHASE_COLOURS, fill
from tcbench.show.page.page import Hatch

_TILE = 8


@dataclass(frozen=True)
class Look:
    """The CSS class of a fill, and the id of the pattern over it where there is one."""

    css: str
    hatch: str = ""


@dataclass(frozen=True)
class Palette:
    """The looks of a page's configs."""

    configs: tuple[str, ...]

    @staticmethod
    def of(configs: Iterable[str]) -> Palette:
        return Palette(tuple(dict.fromkeys(configs)))

    def look(self, config: str) -> Look:
        """Raises ValueError for a config that is not of this page."""
        place = self.configs.index(config)
        return Look(f"c{place}", f"h{place}" if fill(config).hatch else "")

    @property
    def hatches(self) -> tuple[Hatch, ...]:
        """The patterns of configs, and the one of a loss and of waiting."""
        found = [
            _hatch(f"h{place}", marks) for place, config in enumerate(self.configs) if (marks := fill(config).hatch)
        ]
        return (*found, _hatch("h-loss", "/"), _hatch("h-waiting", "/"))

    @property
    def css(self) -> str:
        """A class per fill, light and dark; the ink on it is white or black."""
        rules = []
        for place, config in enumerate(self.configs):
            colour = fill(config).colour
            rules.append(_rule(f"c{place}", colour))
            if fill(config).hatch:
                inks = _ink_on(colour), _ink_on(lifted(colour))
                rules.append(f"#h{place}{{--hatch:light-dark({inks[0]},{inks[1]})}}")
        fills = {"gain": GAIN, "gain-pale": GAIN_PALE, "loss": LOSS, "loss-pale": LOSS_PALE}
        fills |= {f"p-{name}": colour for name, colour in PHASE_COLOURS.items()}
        fills |= {"p-other": OTHER, "p-copy": COPY}
        rules += [_rule(name, colour) for name, colour in fills.items()]
        return "\n".join(rules)


def _rule(name: str, colour: str) -> str:
    dark = lifted(colour)
    edges = shaded(colour, -0.14), shaded(dark, 0.08)
    inks = _ink_on(colour), _ink_on(dark)
    return (
        f".{name}{{--fill:light-dark({colour},{dark});--edge:light-dark({edges[0]},{edges[1]});"
        f"--on:light-dark({inks[0]},{inks[1]})}}"
    )


def phase_look(name: str) -> str:
    """The CSS class of a phase's fill."""
    return f"p-{name}" if name in PHASE_COLOURS else "p-other"


def lifted(colour: str) -> str:
    """A colour for a dark page: the same hue, its lightness (OKLab's, 0 to 1) moved from 0.3 .. 0.9 to 0.55 .. 0.86."""
    lightness, a, b = _oklab(colour)
    return _hex(0.4 + 0.52 * lightness, a, b)


def shaded(colour: str, by: float) -> str:
    """A colour with another lightness."""
    lightness, a, b = _oklab(colour)
    return _hex(min(1.0, max(0.0, lightness + by)), a, b)


def _ink_on(colour: str) -> str:
    """White or black, whichever stands out more: the one that does has a contrast of 4.5 or more on any colour."""
    return "#ffffff" if _luminance(colour) < _MIDDLE else "#000000"


_MIDDLE = 0.179
"""The luminance on which both have the same contrast."""


def _luminance(colour: str) -> float:
    """Relative luminance, 0 to 1 (WCAG 2.2)."""
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _oklab(colour: str) -> tuple[float, float, float]:
    """B. Ottosson, "A perceptual color space for image processing" (2020)."""
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    long = math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
    medium = math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
    short = math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _hex(lightness: float, a: float, b: float) -> str:
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    channels = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _encoded(min(1.0, max(0.0, c)))):02x}" for c in channels)


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def _encoded(channel: float) -> float:
    return 12.92 * channel if channel <= 0.0031308 else 1.055 * channel ** (1 / 2.4) - 0.055


_FALLING = f"M-1,-1l{_TILE + 2},{_TILE + 2}"
_RISING = f"M-1,{_TILE + 1}l{_TILE + 2},-{_TILE + 2}"
_LEVEL = f"M0,{_TILE / 2:g}h{_TILE}"
_UPRIGHT = f"M{_TILE / 2:g},0v{_TILE}"
_PATHS = {
    "/": (_RISING,),
    "\\": (_FALLING,),
    "x": (_RISING, _FALLING),
    "-": (_LEVEL,),
    "|": (_UPRIGHT,),
    "+": (_LEVEL, _UPRIGHT),
}
_DOTS = {".": ((2, 2, 0.9), (6, 6, 0.9)), "o": ((4, 4, 1.6),), "O": ((4, 4, 2.4),), "*": ((4, 4, 2.0), (0.5, 0.5, 1.0))}


def _hatch(id_: str, marks: str) -> Hatch:
    """A pattern of matplotlib's marks."""
    each = dict.fromkeys(marks)
    return Hatch(
        id=id_,
        paths=tuple(path for mark in each for path in _PATHS.get(mark, ())),
        dots=tuple(dot for mark in each for dot in _DOTS.get(mark, ())),
    )
