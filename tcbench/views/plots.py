"""Charts: the talk's bars, one chart per slide of its comparisons, and what each rung buys.

Owns how summaries look on paper and nothing of what they mean. Everything is drawn on a sheet laid out in inches, with
texts measured before they are placed, so that nothing covers anything else whatever the number of configs, batch
sizes and machines. No pyplot: a figure here belongs to nobody else. Imports matplotlib, so the command line imports it
late.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import matplotlib
import msgspec
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tcbench.analysis.ladder import Climb, LadderLike, LadderStep, climbs
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, best, speedups
from tcbench.errors import SelectionError, StoreError
from tcbench.record import Cell, Status

SUFFIXES = (".png", ".svg", ".pdf")
SLIDES = (12, 21, 27, 31, 33)
"""The slides of the talk that compare configs."""

MAX_PANELS = 8

# ---------------------------------------------------------------------------------------------------------------------
# Colours
# ---------------------------------------------------------------------------------------------------------------------

RAMPS: dict[str, tuple[str, ...]] = {
    "fp32": ("#a3ddf6", "#53b9e8", "#0190d7", "#0466bc", "#0b3986"),
    "fp16": ("#fabc2d", "#e78a0f", "#cc5511", "#9b2e1a", "#591012"),
    "bf16": ("#c3e6b4", "#8ccb86", "#4ca65a", "#1f7a3c", "#0d4a24"),
    "other": ("#dccdea", "#bda4d8", "#9a78c0", "#73509c", "#472c6b"),
}
"""A family of hues per dtype, light to dark as rungs are added. Blue against orange is the pair that every common kind
of colour blindness keeps apart (M. Okabe and K. Ito, "Color Universal Design", 2008). The lightness L* of the two main
families is interleaved in steps of 5 or more, so that all ten differ in greyscale too."""

_STAGES = (
    frozenset[str](),
    frozenset({"dali"}),
    frozenset({"dali", "batched"}),
    frozenset({"dali", "batched", "nhwc", "fused"}),
    frozenset({"dali", "batched", "nhwc", "fused", "static_graph"}),
)
"""What the ladders of the scenarios add to their dtype, step by step."""

_HATCHES = {
    "opencv": "////",
    "dali": "++++",
    "batched": "....",
    "nhwc": "xxxx",
    "fused": "\\\\\\\\",
    "static_graph": "----",
    "cuda_graph": "oooo",
}
_OTHER_HATCHES = ("||||", "**", "//..", "OO", "--..", "\\\\..", "||--", "xx..")

INK, QUIET, FAINT = "#1a1a1a", "#595959", "#d9d9d9"
GAIN, LOSS = "#009e73", "#8e2a6b"
GAIN_PALE, LOSS_PALE = "#a6dccb", "#c993b8"


@dataclass(frozen=True)
class Fill:
    """How a config's bars are filled."""

    colour: str
    hatch: str | None = None

    @property
    def hatch_colour(self) -> str:
        """White on dark fills, dark on light ones."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "#333333"


def family(config: str) -> str:
    """The dtype a config's name begins with, or "other"."""
    first = config.partition("+")[0]
    return first if first in RAMPS else "other"


@functools.cache
def fill(config: str) -> Fill:
    """A config's fill: a function of its name alone, so that it is the same in every chart.

    Configs of the scenarios' ladders have plain colours of their own. Any other takes its family's hue, a shade that is
    darker the more rungs it has, and a hatch for its last rung.
    """
    ramp = RAMPS[family(config)]
    first, *rest = config.split("+")
    if first in RAMPS and frozenset(rest) in _STAGES:
        return Fill(ramp[_STAGES.index(frozenset(rest))])
    last = rest[-1] if rest else first
    other = _OTHER_HATCHES[hashlib.sha256(last.encode()).digest()[0] % len(_OTHER_HATCHES)]
    return Fill(ramp[min(len(rest), len(ramp) - 1)], _HATCHES.get(last, other))


# ---------------------------------------------------------------------------------------------------------------------
# Fonts and text
# ---------------------------------------------------------------------------------------------------------------------

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


@functools.cache
def _families() -> tuple[str, ...]:
    """The fonts in use: matplotlib's own, then a Japanese one where the machine has one."""
    there = {entry.name for entry in font_manager.fontManager.ttflist}
    return (_LATIN, *[name for name in _CJK if name in there][:1])


@functools.cache
def _has_glyph(character: str) -> bool:
    for name in _families():
        font = font_manager.get_font(font_manager.findfont(FontProperties(family=name)))
        if font.get_char_index(ord(character)):
            return True
    return False


def _clean(text: str) -> str:
    """One line in which every character can be drawn."""
    return "".join(c if _has_glyph(c) else "?" for c in " ".join(text.split()))


def _title(text: str, summaries: Sequence[CellSummary]) -> str:
    """A title, or the scenario's name where the fonts here cannot write it."""
    text = " ".join(text.split())
    return text if all(map(_has_glyph, text)) else _clean(summaries[0].cell.scenario)


def _font(size: float, bold: bool = False) -> FontProperties:
    return FontProperties(family=list(_families()), size=size, weight="bold" if bold else "normal")


DPI = 160
"""A chart is 10 inches wide, so a PNG has 1600 pixels across."""

WIDTH = 10.0


@functools.cache
def _renderer() -> Any:
    return FigureCanvasAgg(Figure(figsize=(1, 1), dpi=DPI)).get_renderer()  # type: ignore[no-untyped-call]


@functools.lru_cache(4096)
def _width(text: str, size: float, bold: bool = False) -> float:
    """Width of a line, inches."""
    return float(_renderer().get_text_width_height_descent(text, _font(size, bold), ismath=False)[0]) / DPI


def _line(size: float) -> float:
    """Height of a line with its leading, inches."""
    return size * 1.35 / 72


def _wrapped(text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Lines no wider than `width` inches; a word that is wider by itself is cut, as Japanese is."""
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if _width(longer, size, bold) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        line = word
        while _width(line, size, bold) > width and len(line) > 1:
            cut = max((n for n in range(1, len(line)) if _width(line[:n], size, bold) <= width), default=1)
            lines.append(line[:cut])
            line = line[cut:]
    return [*lines, line] if line else lines


def _wrapped_facts(text: str, size: float, width: float) -> list[str]:
    """Lines of facts parted by middle dots; a fact is broken only when it is wider than a line."""
    lines: list[str] = []
    for fact in text.split(" · "):
        if lines and _width(f"{lines[-1]} · {fact}", size) <= width:
            lines[-1] += f" · {fact}"
        else:
            lines += _wrapped(fact, size, width)
    return lines


def _shortened(text: str, size: float, width: float) -> str:
    """The text, or as much of its beginning as `width` inches take, with an ellipsis."""
    if _width(text, size) <= width:
        return text
    n = max((n for n in range(len(text)) if _width(text[:n].rstrip() + "…", size) <= width), default=0)
    return text[:n].rstrip(" :,;") + "…" if n else ""


_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def _prefix(size: float) -> tuple[float, str]:
    """The SI prefix for values about `size`; none from 0.01 to 10,000, where plain digits read better."""
    if size == 0 or 0.01 <= size < 1e4:
        return 1.0, ""
    return next((pair for pair in _PREFIXES if size >= pair[0]), _PREFIXES[-1])


def _number(value: float, as_part_of: float | None = None) -> str:
    """Three digits, or all of a whole number's: 0.0123, 4.56, 78.9, 1234, 12.3k, 4.56M. Prefix and decimals are those
    of `as_part_of` where that is given."""
    size = float(f"{abs(value if as_part_of is None else as_part_of):.3g}")  # 9.999 is written as 10.0
    unit, prefix = _prefix(size)
    decimals = max(0, 2 - math.floor(math.log10(size / unit))) if size else 0
    return f"{value / unit:.{decimals}f}{prefix}"


def _factor(value: float) -> str:
    return f"{value:.2f}×" if value < 10 else f"{_number(value)}×"


def _ticks(top: float) -> FuncFormatter:
    """Numbers of an axis that ends at `top`, all with one prefix."""
    unit, prefix = _prefix(top / 10)
    return FuncFormatter(lambda value, _: f"{value / unit:.6g}{prefix if value else ''}")


_WHY: dict[Status, str] = {
    "ok": "no counted steps",
    "skipped": "skipped",
    "oom": "out of memory",
    "failed": "failed",
    "timeout": "timed out",
    "crashed": "crashed",
}


def why_missing(summary: CellSummary | None) -> str:
    """A few words for a cell without a number: "out of memory", "skipped: needs cv2"."""
    if summary is None:
        return "not run"
    words = _WHY[summary.status]
    if summary.status not in ("skipped", "failed") or not summary.reason:
        return words
    reason = summary.reason
    for rung in summary.cell.rungs:
        reason = reason.removeprefix(f"{rung}: ")
    package = re.match(r"needs the package (\S+?):", reason)
    return f"{words}: {'needs ' + package[1] if package else reason}"


# ---------------------------------------------------------------------------------------------------------------------
# What a chart says of where its numbers come from
# ---------------------------------------------------------------------------------------------------------------------

Setting = tuple[str | None, Cell]

_INPUTS = {"generated": "generated JPEGs", "synthetic": "synthetic input, one batch in memory"}


def _input(cell: Cell) -> str:
    if cell.input.kind == "folder":
        return f"images of {Path(cell.input.path).name}" if cell.input.path else "images of a folder"
    return _INPUTS[cell.input.kind]


def _device(summaries: Sequence[CellSummary]) -> str:
    names = [s.environment.device_name for s in summaries if s.environment]
    return names[0] if names else f"unknown machine ({summaries[0].cell.device})"


def _facts(summaries: Sequence[CellSummary]) -> dict[str, str]:
    """What is said of one setting, by the field it comes from; the first four always, the others where they differ."""
    machine, cell = summaries[0].setting
    facts = {
        "device_name": _device(summaries),
        "model": f"{cell.model} {cell.variant}",
        "image_size": f"{cell.image_size} × {cell.image_size} images",
        "input": _input(cell),
        "machine": machine or "unknown machine",
        "path": cell.input.path or "no folder",
    }
    for name in cell.__struct_fields__:
        value = getattr(cell, name)
        if isinstance(value, msgspec.Struct):
            facts |= {f"{name}.{k}": f"{k} {v}".replace("_", " ") for k, v in msgspec.structs.asdict(value).items()}
        elif name not in ("config", "rungs", "batch_size", "model", "variant", "image_size"):
            facts[name] = f"{name.replace('_', ' ')} {value}"
    return facts


_ALWAYS = ("device_name", "model", "image_size", "input")


@dataclass(frozen=True)
class _Provenance:
    """What is the same for all of a chart's settings, and what tells each from the others."""

    common: tuple[str, ...]
    names: dict[Setting, str]


def _provenance(settings: dict[Setting, list[CellSummary]]) -> _Provenance:
    facts = {setting: _facts(summaries) for setting, summaries in settings.items()}
    keys = next(iter(facts.values())).keys()
    differing = [key for key in keys if len({f[key] for f in facts.values()}) > 1]
    common = tuple(f for key, f in next(iter(facts.values())).items() if key in _ALWAYS and key not in differing)
    # A device's name says enough of the machine and the device it stands for, unless two share it.
    if len({f["device_name"] for f in facts.values()}) == len(facts):
        differing = [key for key in differing if key not in ("machine", "device", "threads")]
    names = {setting: _clean(" · ".join(f[key] for key in differing)) for setting, f in facts.items()}
    return _Provenance(common, names)


def _small_print(summaries: Sequence[CellSummary], common: Sequence[str], whiskers: bool) -> str:
    """Machine, images, input, trials, what the whisker is, version."""
    ok = [s for s in summaries if s.images_per_s is not None]
    words = [*common]
    trials = sorted({s.trials for s in summaries if s.status != "skipped"})
    if trials:
        count = f"{trials[0]}" if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
        words.append(f"{count} trial{'' if trials == [1] else 's'} per cell")
    if ok:
        units = {s.unit for s in ok}
        over = "trials, or steps where there is one trial" if len(units) == 2 else units.pop()
        interval = f"95% confidence interval of the mean over {over}"
        words.append(
            f"whisker: {interval}"
            if whiskers
            else f"pale: the 95% confidence interval of the factor over {over} includes 1"
        )
    versions = dict.fromkeys(s.environment.tcbench for s in summaries if s.environment)
    if versions:
        words.append("tcbench " + ", ".join(versions))
    return _clean(" · ".join(words))


# ---------------------------------------------------------------------------------------------------------------------
# The sheet
# ---------------------------------------------------------------------------------------------------------------------

MARGIN = 0.35


@dataclass
class _Sheet:
    """A figure laid out from the top in inches. Blocks are asked for their height first, then drawn."""

    width: float
    height: float
    figure: Figure = field(init=False)

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(self.width, self.height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(self.figure)

    def text(self, x: float, y: float, text: str, size: float, **look: Any) -> None:
        """A text at x from the left and y from the top; `look` may hold bold, colour, ha, va, rotation, gid."""
        self.figure.text(
            x / self.width,
            1 - y / self.height,
            text,
            fontproperties=_font(size, look.pop("bold", False)),
            color=look.pop("colour", INK),
            parse_math=False,
            **{"ha": "left", "va": "top", **look},
        )

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        box = (x / self.width, 1 - (y + height) / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(box)

    def swatch(self, x: float, y: float, width: float, height: float, look: Fill) -> None:
        self.figure.add_artist(
            Rectangle(
                (x / self.width, 1 - (y + height) / self.height),
                width / self.width,
                height / self.height,
                transform=self.figure.transFigure,
                **_patch(look),
            )
        )

    def better(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """The arrow that says which way is better."""
        (x0, y0), (x1, y1) = start, end
        self.figure.add_artist(
            FancyArrowPatch(
                (x0 / self.width, 1 - y0 / self.height),
                (x1 / self.width, 1 - y1 / self.height),
                transform=self.figure.transFigure,
                arrowstyle="-|>",
                mutation_scale=11,
                shrinkA=0,
                shrinkB=0,
                linewidth=1.4,
                color=QUIET,
            )
        )

    def lines(self, y: float, lines: Sequence[str], size: float, **look: Any) -> float:
        """Lines one below the other from the left margin; returns where the next may begin."""
        for line in lines:
            self.text(MARGIN, y, line, size, **look)
            y += _line(size)
        return y


def _patch(look: Fill) -> dict[str, Any]:
    edge = look.hatch_colour if look.hatch else "none"
    return {"facecolor": look.colour, "edgecolor": edge, "hatch": look.hatch, "linewidth": 0}


@dataclass(frozen=True)
class _Header:
    """Title and subtitle, broken into lines."""

    title: list[str]
    subtitle: list[str]

    @staticmethod
    def of(title: str, subtitle: str, width: float) -> _Header:
        room = width - 2 * MARGIN
        return _Header(_wrapped(title, TITLE, room, bold=True), _wrapped(_clean(subtitle), SUBTITLE, room))

    @property
    def height(self) -> float:
        return len(self.title) * _line(TITLE) + len(self.subtitle) * _line(SUBTITLE)

    def draw(self, sheet: _Sheet, y: float) -> float:
        y = sheet.lines(y, self.title, TITLE, bold=True)
        return sheet.lines(y, self.subtitle, SUBTITLE, colour=QUIET)


@dataclass(frozen=True)
class _Footer:
    """The small print, broken into lines."""

    lines: list[str]

    @staticmethod
    def of(texts: Iterable[str], width: float) -> _Footer:
        return _Footer([line for text in texts for line in _wrapped_facts(text, SMALL, width - 2 * MARGIN)])

    @property
    def height(self) -> float:
        return len(self.lines) * _line(SMALL)

    def draw(self, sheet: _Sheet, y: float) -> None:
        sheet.lines(y, self.lines, SMALL, colour=QUIET)


# ---------------------------------------------------------------------------------------------------------------------
# The legend: one row per dtype, columns that line up rung by rung
# ---------------------------------------------------------------------------------------------------------------------

_SWATCH, _GAP = 0.17, 0.06


@dataclass(frozen=True)
class _Entry:
    """A swatch and its words at a place relative to the legend's corner, inches."""

    config: str
    lines: tuple[str, ...]
    x: float
    y: float


@dataclass(frozen=True)
class _Legend:
    entries: tuple[_Entry, ...]
    height: float
    cumulative: bool

    @staticmethod
    def of(rows: Sequence[Sequence[tuple[str, str]]], width: float) -> _Legend:
        """`rows` hold (config, words). Columns line up where that fits; else each row flows over several lines."""
        room = width - 2 * MARGIN
        pad = _SWATCH + _GAP
        aligned_rows = [row for row in rows if len(row) > 1] or rows
        columns = [
            max(_width(row[i][1], LEGEND) for row in aligned_rows if len(row) > i) + pad + 0.22
            for i in range(max(map(len, aligned_rows)))
        ]
        aligned = sum(columns) <= room
        entries, y = [], 0.0
        for row in rows:
            x = 0.0
            for i, (config, words) in enumerate(row):
                lines = tuple(_wrapped(words, LEGEND, room - pad))
                needed = max(_width(line, LEGEND) for line in lines) + pad
                if not aligned and x and x + needed > room:
                    x, y = 0.0, y + _line(LEGEND)
                entries.append(_Entry(config, lines, x, y))
                x += columns[i] if aligned else needed + 0.22
                y += _line(LEGEND) * (len(lines) - 1)
            y += _line(LEGEND) + 0.03
        return _Legend(tuple(entries), y, any(words.startswith("+") for row in rows for _, words in row))

    def draw(self, sheet: _Sheet, top: float) -> float:
        for entry in self.entries:
            y = top + entry.y
            sheet.swatch(MARGIN + entry.x, y + _line(LEGEND) / 2 - 0.06, _SWATCH, 0.12, fill(entry.config))
            for line in entry.lines:
                x, middle = MARGIN + entry.x + _SWATCH + _GAP, y + _line(LEGEND) / 2
                sheet.text(x, middle, line, LEGEND, va="center_baseline", gid="legend")
                y += _line(LEGEND)
        return top + self.height


def _legend_rows(configs: Sequence[str]) -> list[list[tuple[str, str]]]:
    """A row per family; a config that goes on from the one before it is named by what it adds."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for config in configs:
        row = rows.setdefault(family(config), [])
        before = row[-1][0] if row else None
        extends = before is not None and config.startswith(before + "+")
        words = config.removeprefix(before or "")[1:] if extends else config
        row.append((config, _clean(("+ " if extends else "") + words.replace("+", " + "))))
    return list(rows.values())


# ---------------------------------------------------------------------------------------------------------------------
# Bars
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bar:
    """One place in a group: a config and what became of it. `note` stands above the value."""

    config: str
    summary: CellSummary | None
    note: str = ""

    @property
    def images_per_s(self) -> Interval | None:
        return self.summary.images_per_s if self.summary else None


@dataclass(frozen=True)
class _Group:
    batch_size: int
    bars: tuple[_Bar, ...]


@dataclass(frozen=True)
class _Panel:
    """The bars of one setting, grouped by batch size."""

    name: str
    groups: tuple[_Group, ...]


_AXIS_LEFT = 1.16  # room for the arrow, the axis' name and its numbers
_BAR_GAP = 0.8  # between groups, in bars
_MIN_REACH = 7  # bars are no wider than if there were so many
_MIN_PITCH = 0.105  # inches from bar to bar; below, labels in place of bars would touch


def throughput_chart(
    summaries: Sequence[CellSummary],
    *,
    title: str | None = None,
    subtitle: str = "",
    configs: Sequence[str] | None = None,
) -> Figure:
    """The talk's chart: images/s in bars grouped by batch size, a colour per config, one panel per setting.

    `configs` chooses and orders; a cell that gave no number says why in its place. Without a title, the scenario's
    name. Raises SelectionError when there is nothing to draw.
    """
    configs = list(dict.fromkeys(s.cell.config for s in summaries) if configs is None else configs)
    chosen = [s for s in summaries if s.cell.config in configs]
    settings = _settings(chosen, f"results of {', '.join(configs)}" if configs else "results")

    def groups(here: Sequence[CellSummary]) -> Iterable[_Group]:
        for batch_size in _batch_sizes(here):
            yield _Group(batch_size, tuple(_Bar(c, _at(here, c, batch_size)) for c in configs))

    return _bar_chart(settings, groups, _legend_rows(configs), title or chosen[0].cell.scenario, subtitle)


@dataclass(frozen=True)
class _Slide:
    title: str
    talk: str
    stages: tuple[str, ...]


_SLIDES: dict[int, _Slide] = {
    12: _Slide(
        "fp32 and fp16",
        "In the talk (V100): fp16 is faster from batch size 128 on, slower up to 64; 256 fits in fp16 only.",
        ("fp32", "fp16"),
    ),
    21: _Slide(
        "fp16 with DALI",
        "In the talk (V100): faster than fp32 from batch size 64 on; 128 about as fast as 256; slower at 32.",
        ("fp32", "fp16", "fp16+dali"),
    ),
    27: _Slide(
        "fp16 with fewer GPU operations: batched, NHWC, fused",
        "In the talk (V100): faster than fp32 at every batch size; 32 gets about a third of 256.",
        ("fp32", "fp16", "fp16+dali", "fp16+dali+batched+nhwc+fused"),
    ),
    31: _Slide(
        "fp16 with static_graph",
        "In the talk (V100): faster at batch sizes 32 and 64; does not run from 128 on.",
        ("fp32", "fp16", "fp16+dali", "fp16+dali+batched+nhwc+fused", "fp16+dali+batched+nhwc+fused+static_graph"),
    ),
    33: _Slide(
        "fp32, fp16, and the best of all",
        "In the talk (V100): the best is up to 3 times as fast as fp32.",
        ("fp32", "fp16"),
    ),
}


def slide_chart(summaries: Sequence[CellSummary], slide: int) -> Figure:
    """One comparison of the talk. "Best" (slide 33) is the fastest config that is ok, whatever its dtype.

    Configs are known by their rungs, in whatever order; cells that were never run say so in their place and are named
    below. Raises SelectionError for another slide, or when none of the slide's configs was run.
    """
    if slide not in _SLIDES:
        raise SelectionError(f"--slide {slide}: expected one of {', '.join(map(str, SLIDES))}")
    spec = _SLIDES[slide]
    stages = [_named_here(stage, summaries) for stage in spec.stages]
    chosen = [s for s in summaries if s.cell.config in stages]
    if not chosen:
        raise SelectionError(f"--slide {slide}: no results of {', '.join(stages)}; `tcbench run` makes some")
    keep = {s.setting for s in chosen}
    settings = _settings([s for s in summaries if s.setting in keep], "results")
    winners: dict[str, list[int]] = {}
    not_run: list[str] = []

    def groups(here: Sequence[CellSummary]) -> Iterable[_Group]:
        shown = here if slide == 33 else [s for s in here if s.cell.config in stages]
        for batch_size in _batch_sizes(shown):
            bars = [_Bar(config, _at(here, config, batch_size)) for config in stages]
            not_run.extend(f"{b.config} at {batch_size}" for b in bars if b.summary is None)
            if slide == 33:
                bars.append(best_bar(here, batch_size))
            yield _Group(batch_size, tuple(bars))

    def best_bar(here: Sequence[CellSummary], batch_size: int) -> _Bar:
        winner = best(s for s in here if s.cell.batch_size == batch_size)
        if winner is None:
            return _Bar("best", None)
        winners.setdefault(winner.cell.config, []).append(batch_size)
        ratio = next(r for s, r in zip(here, speedups(here), strict=True) if s is winner)
        return _Bar(winner.cell.config, winner, f"best\n{_factor(ratio.value)}" if ratio else "best")

    ready = {setting: tuple(groups(here)) for setting, here in settings.items()}
    rows = _legend_rows(stages)
    if slide == 33:
        rows = [[(config, config) for config in stages]]
        for config, sizes in winners.items():
            at = f" at {', '.join(map(str, sorted(sizes)))}" if len(settings) == 1 else ""
            rows.append([(config, _clean(f"best{at}: {config.replace('+', ' + ')}"))])
    notes = [_clean(f"not run: {', '.join(not_run)}")] if not_run else []
    if slide == 33 and winners:
        notes.insert(0, "best: the fastest config of all that were run, and how many times as fast as fp32")
    return _bar_chart(
        settings, lambda here: ready[here[0].setting], rows, f"Slide {slide}: {spec.title}", spec.talk, notes
    )


def _named_here(stage: str, summaries: Sequence[CellSummary]) -> str:
    """The config of the results that has a stage's rungs, in whatever order; the stage itself when none has."""
    wanted = frozenset(stage.split("+"))
    return next((s.cell.config for s in summaries if frozenset(s.cell.rungs) == wanted), stage)


def _settings(summaries: Sequence[CellSummary], what: str) -> dict[Setting, list[CellSummary]]:
    """Summaries by setting. Raises SelectionError when there are none or too many for one chart."""
    if not summaries:
        raise SelectionError(f"no {what} to plot; `tcbench run` makes some")
    settings: dict[Setting, list[CellSummary]] = {}
    for summary in summaries:
        settings.setdefault(summary.setting, []).append(summary)
    if len(settings) > MAX_PANELS:
        raise SelectionError(
            f"results of {len(settings)} different settings (machine, device, input, ...) do not fit in one chart "
            f"(at most {MAX_PANELS}); name fewer files"
        )
    return settings


def _batch_sizes(summaries: Iterable[CellSummary]) -> list[int]:
    return sorted({s.cell.batch_size for s in summaries})


def _at(summaries: Iterable[CellSummary], config: str, batch_size: int) -> CellSummary | None:
    return next((s for s in summaries if s.cell.config == config and s.cell.batch_size == batch_size), None)


def _bar_chart(
    settings: dict[Setting, list[CellSummary]],
    groups: Callable[[Sequence[CellSummary]], Iterable[_Group]],
    legend_rows: Sequence[Sequence[tuple[str, str]]],
    title: str,
    subtitle: str,
    notes: Sequence[str] = (),
) -> Figure:
    provenance = _provenance(settings)
    panels = [_Panel(provenance.names[setting], tuple(groups(here))) for setting, here in settings.items()]
    everything = [bar.summary for panel in panels for group in panel.groups for bar in group.bars if bar.summary]
    pitches = max(_pitches(panel.groups) for panel in panels)
    width = max(WIDTH, _AXIS_LEFT + MARGIN + _MIN_PITCH * pitches)

    header = _Header.of(_title(title, everything), subtitle, width)
    legend = _Legend.of(legend_rows, width)
    small = _small_print(everything, provenance.common, whiskers=True)
    if legend.cumulative:
        small += " · + adds to the config on its left"
    footer = _Footer.of([*notes, small], width)
    names = [_wrapped(panel.name, LABEL, width - 2 * MARGIN, bold=True) for panel in panels]
    axes_height = 3.3 if len(panels) == 1 else 2.4
    name_heights = [0.2 + len(name) * _line(LABEL) if name else 0.1 for name in names]
    panel_heights = [name_height + axes_height + 0.26 for name_height in name_heights]
    height = 0.3 + header.height + 0.14 + legend.height + sum(panel_heights) + 0.3 + footer.height + 0.22

    sheet = _Sheet(width, height)
    y = header.draw(sheet, 0.3) + 0.14
    y = legend.draw(sheet, y)
    for panel, name, name_height, panel_height in zip(panels, names, name_heights, panel_heights, strict=True):
        sheet.lines(y + 0.18, name, LABEL, bold=True)
        top = y + name_height
        axes = sheet.axes(_AXIS_LEFT, top, width - _AXIS_LEFT - MARGIN, axes_height)
        _draw_bars(axes, panel.groups)
        middle = top + axes_height / 2
        sheet.text(0.6, middle, "images/s", LABEL, rotation=90, va="center", ha="center", colour=QUIET)
        word = _width("Better", LABEL) + 0.1
        length = min(0.75, axes_height / 3)
        sheet.text(
            0.4, middle + (word + length) / 2, "Better", LABEL, rotation=90, va="bottom", ha="center", colour=QUIET
        )
        bottom = middle + (length - word) / 2
        sheet.better((0.4, bottom), (0.4, bottom - length))
        y += panel_height
    centre = (_AXIS_LEFT + width - MARGIN) / 2
    sheet.text(centre, y, "batch size", LABEL, ha="center", colour=QUIET)
    footer.draw(sheet, y + 0.3)
    return sheet.figure


def _pitches(groups: Sequence[_Group]) -> float:
    """Width of a panel in bars."""
    return sum(len(group.bars) for group in groups) + _BAR_GAP * len(groups)


def _draw_bars(axes: Axes, groups: Sequence[_Group]) -> None:
    reach = max(_pitches(groups), _MIN_REACH)
    width, height = _size(axes)
    bars = [bar for group in groups for bar in group.bars]
    ceiling = _ceiling([bar.images_per_s for bar in bars if bar.images_per_s])
    words_height = 0.12 + _line(WORDS) * (1 + max(len(bar.note.splitlines()) for bar in bars))
    _style(axes, "y", ceiling / (1 - words_height / height))
    axes.set_xlim(0, reach)
    x = (reach - _pitches(groups) + _BAR_GAP) / 2
    ticks = []
    for group in groups:
        ticks.append(x + len(group.bars) / 2)
        for bar in group.bars:
            _draw_bar(axes, x + 0.5, bar, width / reach, ceiling)
            x += 1
        x += _BAR_GAP
    axes.set_xticks(ticks, [str(group.batch_size) for group in groups], fontproperties=_font(LABEL + 1))
    axes.tick_params(axis="x", length=0, pad=4)


def _size(axes: Axes) -> tuple[float, float]:
    """Width and height of an axes, inches."""
    box = axes.get_window_extent()
    return box.width / DPI, box.height / DPI


def _ceiling(intervals: Sequence[Interval]) -> float:
    """The end of the highest bar or whisker, but for whiskers out of all proportion, which are cut there."""
    if not intervals:
        return 1.0
    highest = max(interval.value for interval in intervals)
    return max(min(interval.high, 1.5 * highest) for interval in intervals)


def _draw_bar(axes: Axes, x: float, bar: _Bar, pitch: float, ceiling: float) -> None:
    """A bar with its whisker and, where there is room, its value; or, upright in its place, why there is none."""
    interval = bar.images_per_s
    if interval is None:
        size = min(LEGEND, pitch * 72 / 1.3)
        why = _shortened(_clean(why_missing(bar.summary)), size, min(2.4, _size(axes)[1] - 0.2))
        axes.plot([x - 0.43, x + 0.43], [0, 0], color=QUIET, linewidth=1.6, solid_capstyle="butt", clip_on=False)
        _annotate(axes, why, (x, 0), (0, 4), size, rotation=90, va="bottom", colour=QUIET)
        return
    axes.bar(x, interval.value, width=0.86, zorder=2, **_patch(fill(bar.config)))
    end = min(interval.high, ceiling)
    cap = min(0.12, 0.045 / pitch)
    caps = [interval.low, interval.high] if interval.high <= ceiling else [interval.low]
    for colour, linewidth, zorder in (("white", 2.1, 2.9), (INK, 0.9, 3)):  # a light edge, for whiskers on dark bars
        look: dict[str, Any] = {"color": colour, "linewidth": linewidth, "zorder": zorder, "solid_capstyle": "butt"}
        axes.plot([x, x], [interval.low, end], **look)
        for at in caps:
            axes.plot([x - cap, x + cap], [at, at], **look)
    if interval.high > ceiling:
        axes.plot([x], [ceiling], marker="^", markersize=4, color=INK, zorder=3, clip_on=False)
    words = "\n".join(filter(None, [bar.note, _number(interval.value)]))
    if max(_width(line, WORDS) for line in words.split("\n")) <= pitch * 0.98:
        _annotate(axes, words, (x, end), (0, 4 if end < interval.high else 2.5), WORDS, va="bottom", linespacing=1.05)


def _annotate(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], size: float, **look: Any
) -> None:
    """A text at a point of the data, moved by `offset` points."""
    axes.annotate(
        text,
        at,
        xytext=offset,
        textcoords="offset points",
        fontproperties=_font(size),
        color=look.pop("colour", INK),
        parse_math=False,
        annotation_clip=False,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},  # the grid does not run through words
        **{"ha": "center", "va": "center", "zorder": 4, **look},
    )


def _style(axes: Axes, value_axis: Literal["x", "y"], top: float) -> None:
    """A value axis from 0 with a light grid behind the bars, and no frame but the base line."""
    for name, spine in axes.spines.items():
        spine.set_visible(name == ("bottom" if value_axis == "y" else "left"))
        spine.set_color(QUIET)
        spine.set_linewidth(0.8)
    axis = axes.yaxis if value_axis == "y" else axes.xaxis
    (axes.set_ylim if value_axis == "y" else axes.set_xlim)(0, top)
    axis.set_major_locator(MaxNLocator(6 if value_axis == "y" else 3, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(_ticks(top))
    axes.grid(axis=value_axis, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis=value_axis, length=0, pad=4, labelcolor=QUIET)
    for label in axis.get_ticklabels():
        label.set_fontproperties(_font(LABEL if value_axis == "y" else WORDS))


# ---------------------------------------------------------------------------------------------------------------------
# The ladder
# ---------------------------------------------------------------------------------------------------------------------

_ROW = 0.235
_COLUMNS = 4
_LABEL_GAP = 0.12
_COLUMN_GAP = 0.22
_LADDER_SUBTITLE = (
    "Images/s gained or lost by each rung, and the factor over the step before. Each ladder has its own scale."
)


def ladder_chart(
    summaries: Sequence[CellSummary], ladders: Sequence[LadderLike] | None = None, *, title: str = "What each rung buys"
) -> Figure:
    """Each ladder at each batch size as a waterfall: from the base, what every rung adds or takes, to the top.

    A row per ladder (and setting), a column per batch size, one scale per setting. Without `ladders`, those that the
    results hold. Raises SelectionError when no config adds rungs to another.
    """
    settings = _settings(summaries, "results")
    found = climbs(summaries, ladders)
    if not found:
        raise SelectionError("no ladder in these results: no config adds rungs to another")
    settings = {setting: settings[setting] for setting in dict.fromkeys(climb.setting for climb in found)}
    provenance = _provenance(settings)
    rows: dict[tuple[Setting, str], list[Climb]] = {}
    for climb in found:
        rows.setdefault((climb.setting, climb.ladder), []).append(climb)
    blocks = [
        _Block(_row_title(ladder, provenance.names[setting]), setting, ladder, group[i : i + _COLUMNS])
        for (setting, ladder), group in rows.items()
        for i in range(0, len(group), _COLUMNS)
    ]
    width = WIDTH
    header = _Header.of(_title(title, summaries), _LADDER_SUBTITLE, width)
    footer = _Footer.of([_small_print(summaries, provenance.common, whiskers=False)], width)
    height = 0.3 + header.height + sum(block.height for block in blocks) + 0.35 + footer.height + 0.22
    sheet = _Sheet(width, height)
    y = header.draw(sheet, 0.3)
    label_width = max(block.label_width for block in blocks)
    columns = max(len(block.climbs) for block in blocks)
    column_width = (width - 2 * MARGIN - label_width - _LABEL_GAP - _COLUMN_GAP * (columns - 1)) / columns
    for block in blocks:
        climbed = rows[block.setting, block.ladder]
        _draw_block(sheet, y, block, label_width, _Scale.of(climbed, column_width))
        y += block.height
    x = width - MARGIN
    sheet.better((x - 0.75, y + 0.1), (x, y + 0.1))
    sheet.text(x - 0.83, y + 0.1, "images/s · Better", LABEL, ha="right", va="center", colour=QUIET)
    footer.draw(sheet, y + 0.35)
    return sheet.figure


@dataclass(frozen=True)
class _Block:
    """One ladder's waterfalls, side by side."""

    title: str
    setting: Setting
    ladder: str
    climbs: Sequence[Climb]

    @property
    def labels(self) -> list[str]:
        """A name per step: the base's own, then what each adds to the config below it."""
        configs = [step.config.split("+") for step in self.climbs[0].steps]
        added = [[r for r in now if r not in before] for before, now in itertools.pairwise(configs)]
        return [_clean(t) for t in (" + ".join(configs[0]), *("+ " + " + ".join(rungs) for rungs in added), "in all")]

    @property
    def label_width(self) -> float:
        return max(_width(label, LEGEND) for label in self.labels)

    @property
    def height(self) -> float:
        return 0.2 + 2 * _line(LABEL) + _ROW * len(self.labels) + 0.3


def _row_title(ladder: str, setting: str) -> str:
    return _clean(f"{ladder} ladder") + (f" · {setting}" if setting else "")


def _draw_block(sheet: _Sheet, y: float, block: _Block, label_width: float, scale: _Scale) -> None:
    title = _shortened(block.title, LABEL + 1, sheet.width - 2 * MARGIN)
    sheet.text(MARGIN, y + 0.2, title, LABEL + 1, bold=True)
    top = y + 0.2 + 2 * _line(LABEL)
    left = MARGIN + label_width + _LABEL_GAP
    rows = len(block.labels)
    for i, label in enumerate(block.labels):
        sheet.text(left - _LABEL_GAP, top + (i + 0.5) * _ROW, label, LEGEND, ha="right", va="center")
    for i, climb in enumerate(block.climbs):
        x = left + i * (scale.width + _COLUMN_GAP)
        sheet.text(x, top - 0.03, f"batch size {climb.batch_size}", LABEL, va="bottom", colour=QUIET)
        axes = sheet.axes(x, top, scale.width, rows * _ROW)
        axes.set_ylim(rows, 0)
        axes.set_yticks([])
        _draw_waterfall(axes, climb, scale)


@dataclass(frozen=True)
class _Scale:
    """The value axis of a ladder's panels, all alike: wide enough for the longest bar and the words beside it."""

    width: float
    highest: float
    images_per_s_per_inch: float

    @staticmethod
    def of(climbed: Sequence[Climb], width: float) -> _Scale:
        values = [step.after.value for climb in climbed for step in climb.steps if step.after]
        words = [_step_words(step) for climb in climbed for step in climb.steps if step.after]
        longest = max(_width(text, WORDS) for text in [*words, *map(_total, climbed), "100"])
        highest = max(values, default=1.0)
        return _Scale(width, highest, highest / max(width - longest - 0.1, 0.3 * width))


def _draw_waterfall(axes: Axes, climb: Climb, scale: _Scale) -> None:
    """Base, one bar per step between its before and after, and the top; each with its words on the right."""
    _style(axes, "x", scale.images_per_s_per_inch * scale.width)
    ticks = MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]).tick_values(0, scale.highest)
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= scale.highest * 1.02])
    level = 0.0
    for row, step in enumerate(climb.steps):
        if step.after is None:
            _place(axes, _clean(_step_words(step)), level, row, scale, QUIET)
            continue
        level = step.after.value
        if step.before is None:
            start, end, look = 0.0, level, _patch(fill(step.config))
        else:
            start, end = sorted((step.before.value, level))
            look = _delta_look(step)
        axes.barh(row + 0.5, end - start, left=start, height=0.7, zorder=2, **look)
        _place(axes, _step_words(step), end, row, scale, QUIET if _unsure(step) else INK)
        below = next((j for j in range(row + 1, len(climb.steps)) if climb.steps[j].after), len(climb.steps))
        axes.plot([level, level], [row + 0.15, below + 0.85], color=QUIET, linewidth=0.7, zorder=1.5)
    if climb.top:
        axes.barh(len(climb.steps) + 0.5, level, height=0.7, zorder=2, **_patch(fill(climb.top.config)))
        _place(axes, _total(climb), level, len(climb.steps), scale, INK)


def _step_words(step: LadderStep) -> str:
    """ "+120  1.32×", the base's images/s, or why there is no number."""
    if step.after is None:
        return why_missing(step.summary)
    if step.before is None or step.ratio is None:
        return _number(step.after.value)
    change = step.after.value - step.before.value
    sign = "+" if change >= 0 else "−"
    return f"{sign}{_number(abs(change), as_part_of=step.after.value)}  {_factor(step.ratio.value)}"


def _total(climb: Climb) -> str:
    """Images/s at the top and the factor over the base."""
    base, top = climb.base, climb.top
    if base is None or top is None or base.after is None or top.after is None:
        return ""
    total = _number(top.after.value)
    return total if top is base else f"{total}  {_factor(top.after.value / base.after.value)}"


def _unsure(step: LadderStep) -> bool:
    """Whether the step may as well have changed nothing."""
    return step.ratio is not None and step.ratio.holds(1.0)


def _delta_look(step: LadderStep) -> dict[str, Any]:
    """Gains green, losses purple and hatched; pale when the interval of the ratio holds 1."""
    assert step.ratio is not None
    unsure = _unsure(step)
    if step.ratio.value >= 1:
        return {"facecolor": GAIN_PALE if unsure else GAIN, "edgecolor": "none", "linewidth": 0}
    colour, lines = (LOSS_PALE, LOSS) if unsure else (LOSS, "#ffffff")
    return {"facecolor": colour, "edgecolor": lines, "hatch": "/////", "linewidth": 0}


def _place(axes: Axes, text: str, value: float, row: int, scale: _Scale, colour: str) -> None:
    """Words right of a value; left of it, or shortened, where they do not fit."""
    at = value / scale.images_per_s_per_inch
    room = scale.width - at - 0.05
    needed = _width(text, WORDS)
    if needed > room and needed <= at - 0.05:
        _annotate(axes, text, (value, row + 0.5), (-3, 0), WORDS, ha="right", colour=colour)
    else:
        _annotate(axes, _shortened(text, WORDS, room), (value, row + 0.5), (3, 0), WORDS, ha="left", colour=colour)


# ---------------------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------------------


def check_path(path: Path) -> None:
    """Raises SelectionError unless the file's name ends in a format that `save` writes."""
    if path.suffix.lower() not in SUFFIXES:
        raise SelectionError(f"{path}: expected a file name that ends in {', '.join(SUFFIXES)}")


def save(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF, as the suffix says; the same figure gives the same bytes, whenever it is written.

    Folders are made. Raises SelectionError for another suffix and StoreError when the file cannot be written.
    """
    check_path(path)
    suffix = path.suffix.lower()
    metadata: dict[str, Any] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
    data = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "tcbench", "pdf.fonttype": 42}):
        figure.savefig(data, format=suffix[1:], dpi=DPI, metadata=metadata)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        path.write_bytes(data.getvalue())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); name another file with -o") from None
