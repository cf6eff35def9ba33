"""The colours and hatches of all charts: a config's fill depends on its name only, so it is the same in every chart."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tcbench.show.charts.text import config_name

RAMPS: dict[str, tuple[str, ...]] = {
    "fp32": ("#a3ddf6", "#53b9e8", "#0190d7", "#0466bc", "#0b3986"),
    "fp16": ("#fabc2d", "#e78a0f", "#cc5511", "#9b2e1a", "#591012"),
    "bf16": ("#c3e6b4", "#8ccb86", "#4ca65a", "#1f7a3c", "#0d4a24"),
    "other": ("#dccdea", "#bda4d8", "#9a78c0", "#73509c", "#472c6b"),
}
"""Colours per dtype, darker as rungs are added.

Blue and orange stay distinguishable with every common kind of colour blindness (M. Okabe and K. Ito, "Color Universal
Design", 2008). The lightness L* of these two families interleaves in steps of 5 or more, so that all ten colours differ
in greyscale too."""

PEER_RAMPS: dict[str, tuple[str, ...]] = {
    "fp32": ("#cfdcdd", "#a2babd", "#76989d", "#4d777e", "#44525a"),
    "fp16": ("#ef97c0", "#d96aa2", "#b5428a", "#872774", "#521258"),
    "bf16": ("#dfdca2", "#c2bc62", "#98912f", "#6d6816", "#443f09"),
    "other": ("#d2b8a4", "#b99880", "#9b7a62", "#795a44", "#523926"),
}
"""Colours per dtype for configs of other backends, such as "torch/fp32", darker as rungs are added."""

_STAGES = (
    frozenset[str](),
    frozenset({"dali"}),
    frozenset({"dali", "batched"}),
    frozenset({"dali", "batched", "nhwc", "fused"}),
    frozenset({"dali", "batched", "nhwc", "fused", "static_graph"}),
)
"""The rungs of each step of the scenarios' ladders, without the dtype."""

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
_WITHOUT_DALI = "/"
"""The hatch of a ladder's config without `dali`, in the colour of that config."""
_LINES = ("//", "\\\\", "--", "||")
_POINTS = ("..", "oo", "**", "O")
"""Marks added to a hatch: lines to points and points to lines, so that no combination looks like another rung's."""

INK, QUIET, FAINT, PAPER = "#1a1a1a", "#595959", "#d9d9d9", "#ffffff"
ON_LIGHT, ON_DARK = "#111111", "#fefefe"
"""Colours of texts and hatches on fills. They differ from INK and PAPER because these are inverted on a dark page."""
GAIN, LOSS = "#009e73", "#8e2a6b"
GAIN_PALE, LOSS_PALE = "#a6dccb", "#c993b8"


def change_patch(*, better: bool, sure: bool) -> dict[str, Any]:
    """Return the fill of a gain or a loss as properties of a matplotlib patch; pale unless it is `sure`."""
    if better:
        return {"facecolor": GAIN if sure else GAIN_PALE, "edgecolor": "none", "linewidth": 0}
    colour, lines = (LOSS, ON_DARK) if sure else (LOSS_PALE, LOSS)
    return {"facecolor": colour, "edgecolor": lines, "hatch": "/////", "linewidth": 0}


@dataclass(frozen=True)
class Fill:
    """The colour and the hatch of a config's bars."""

    colour: str
    hatch: str | None = None

    @property
    def hatch_colour(self) -> str:
        """The colour of a hatch or text on the fill: light on dark fills, dark on light ones."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        if 0.299 * red + 0.587 * green + 0.114 * blue < 140:
            return ON_DARK
        return INK if self.colour == PAPER else ON_LIGHT

    @property
    def edge_colour(self) -> str:
        """The colour of the hatch's lines; "none" without a hatch."""
        return self.hatch_colour if self.hatch else "none"

    @property
    def patch(self) -> dict[str, Any]:
        """The fill as properties of a matplotlib patch."""
        return {"facecolor": self.colour, "edgecolor": self.edge_colour, "hatch": self.hatch, "linewidth": 0}


SERIES = (
    Fill("#6fbbe6"),
    Fill("#d55e00"),
    Fill("#00543d"),
    Fill("#f5d04a"),
    Fill("#7a4a9c"),
    Fill("#ea9fc4", "////"),
    Fill("#5f6b73", "...."),
    Fill("#1b3f8b", "xxxx"),
)
"""Fills of series that are not configs, such as machines. No two differ by hue alone."""

PHASE_COLOURS = {
    "io": "#fabc2d",
    "forward": "#53b9e8",
    "backward": "#0b4f9e",
    "allreduce": "#45a154",
    "factors": "#ffccff",
    "inverse": "#cc33cc",
    "precondition": "#b8e0a8",
    "update": "#b8420f",
    "replay": "#4a1f66",
}
"""Colours of phases. Those next to each other in a step also differ in lightness."""
OTHER, COPY = "#8c8c8c", "#4d4d4d"


def phase_colour(name: str) -> str:
    """Return the colour of a phase, grey for one that is not tcbench's. `input` is a program's name of the phase io."""
    return PHASE_COLOURS.get("io" if name == "input" else name, OTHER)


RECORDED = "#f3f3f3"
"""The background of the recorded part of a timeline."""


def family(config: str) -> str:
    """Return the dtype that a config's name begins with, or "other"."""
    first = _parts(config)[0]
    return first if first in RAMPS else "other"


@functools.cache
def fill(config: str) -> Fill:
    """Return the fill of a config.

    Configs of the scenarios' ladders have plain colours, lightly hatched without `dali`. Any other config has a colour
    of its dtype and the hatch of its last rung. If that rung is added to a config of a ladder, the shade is darker the
    more rungs there are. If not, a hash of the rungs before the last one selects the shade and a second hatch."""
    ramp = (PEER_RAMPS if "/" in config else RAMPS)[family(config)]
    parts = _parts(config)
    stage = _stage(parts)
    if stage is not None:
        return Fill(ramp[stage])
    without_dali = _stage([*parts, "dali"])
    if without_dali is not None:
        return Fill(ramp[without_dali], _WITHOUT_DALI)
    *below, last = parts
    hatch = _HATCHES.get(last) or _OTHER_HATCHES[_digest(last) % len(_OTHER_HATCHES)]
    if not below or _stage(below) in range(len(_STAGES) - 1):  # a rung above the top shares the top's shade
        return Fill(ramp[min(len(below), len(ramp) - 1)], hatch)
    marks = _LINES if set(hatch) & set(".oO*") else _POINTS
    mark, shade = divmod(_digest("+".join(sorted(below))), len(ramp))
    return Fill(ramp[shade], hatch + marks[mark % len(marks)])


def legend_rows(configs: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return the legend's rows of (config, label), one per backend and dtype. A config that extends the previous one is
    labelled by the rungs that it adds."""
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for config in configs:
        row = rows.setdefault((config.rpartition("/")[0], family(config)), [])
        previous = row[-1][0] if row else None
        extends = previous is not None and config.startswith(previous + "+")
        words = config.removeprefix(previous or "")[1:] if extends else config
        row.append((config, ("+ " if extends else "") + config_name(words)))
    return list(rows.values())


def _parts(config: str) -> list[str]:
    """Return the dtype and rungs of a config without its backend; the change of an ablation is the last part."""
    return config.rpartition("/")[2].replace(":", "+").split("+")


def _stage(parts: Sequence[str]) -> int | None:
    """Return the index in `_STAGES` of a config with these parts (dtype first, rungs in any order); None if the config
    is not on a ladder."""
    first, *rungs = parts
    return _STAGES.index(frozenset(rungs)) if first in RAMPS and frozenset(rungs) in _STAGES else None


def _digest(text: str) -> int:
    """Return a hash of a text that is the same in every process, unlike Python's own."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "little")
