"""A host profile as a flame graph: the phases of a step side by side, above each the functions it calls.

A function is as wide as its time with all that it calls, and callees stand on their caller (B. Gregg, "The Flame
Graph", CACM 59(6), 2016), the longest first. Owns the layout. Knows nothing of where a profile comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from tcbench.analysis.host_time import Origin, origin
from tcbench.core.host_profile import Frame, HostProfile, Stack
from tcbench.present.charts.page import ChartPage
from tcbench.present.charts.palette import ON_LIGHT, PAPER, SERIES
from tcbench.present.charts.text import LABEL, SMALL, drawable, shortened
from tcbench.present.format import counted, milliseconds, percent

ORIGINS: dict[Origin, str] = {
    "tcbench": "tcbench, or a step's own code",
    "framework": "framework",
    "compute": "NumPy, other libraries, driver: with the functions that call them",
}
_COLOURS: dict[Origin, str] = {"tcbench": SERIES[3].colour, "framework": SERIES[5].colour, "compute": SERIES[0].colour}
_WIDTH, _ROW = 16.0, 0.17
"""Inches."""
_NARROWEST, _NAMED = 0.01, 0.25
"""Inches: of a function that is drawn, and of one that bears its name."""
_MOST_ROWS = 60


@dataclass
class _Node:
    """A function with all that it calls, seconds per step."""

    frame: Frame
    origin: Origin
    seconds: float = 0.0
    callees: dict[Frame, _Node] = field(default_factory=dict)


def flame_chart(profile: HostProfile) -> Figure:
    """The profile's phases that take time, on one scale of milliseconds per step."""
    roots = [(phase, _tree([s for s in profile.stacks if s.phase == phase])) for phase in profile.phases]
    roots = [(phase, root) for phase, root in roots if root.seconds > 0]
    total = sum(root.seconds for _, root in roots)
    sampled = f"{counted(profile.samples, 'sample')} of " if profile.samples else ""
    page = ChartPage(
        f"Host: {drawable(profile.label)}",
        f"{profile.device_name} · {profile.image_size} × {profile.image_size} images · {profile.tool}, {sampled}"
        f"{counted(profile.steps, 'step')}",
        [
            f"A step took {milliseconds(profile.step_s)} while it was profiled, {milliseconds(profile.timed_step_s)} "
            f"without: overhead {percent(profile.overhead)}; timed steps vary by {percent(profile.timed_spread)}. "
            "Functions narrower than a pixel are left out."
        ],
        width=_WIDTH,
    )
    page.legend([[Patch(color=_COLOURS[whose], label=words) for whose, words in ORIGINS.items()]])
    scale = page.room / (total or 1.0)  # inches per second
    rows = min(_MOST_ROWS, max((_depth(root, _NARROWEST / scale) for _, root in roots), default=1))
    [[axes]] = page.panels([rows * _ROW])
    axes.set_xlim(0, total * 1e3)
    axes.set_ylim(0, rows)
    axes.set_yticks([])
    axes.grid(False)
    axes.set_xlabel("ms per step")
    axes.tick_params(labelsize=LABEL)
    axes.spines["left"].set_visible(False)
    begin_s = 0.0
    for phase, root in roots:
        root.frame = Frame(f"{phase}  {milliseconds(root.seconds)}")
        for node, x, row in _laid_out(root, begin_s, 0, _NARROWEST / scale):
            _draw(axes, node, x, row, scale, bold=row == 0)
        begin_s += root.seconds
    return page.settle()


def _tree(stacks: Sequence[Stack]) -> _Node:
    """The calls of a phase; its root is the phase's function."""
    root = _Node(Frame(""), "tcbench")
    for stack in stacks:
        root.seconds += stack.seconds
        node = root
        for depth, frame in enumerate(stack.frames[1:], start=2):
            if frame not in node.callees:
                node.callees[frame] = _Node(frame, origin(stack.frames[:depth]))
            node = node.callees[frame]
            node.seconds += stack.seconds
    return root


def _depth(node: _Node, least_s: float) -> int:
    return 1 + max((_depth(inner, least_s) for inner in node.callees.values() if inner.seconds >= least_s), default=0)


def _laid_out(node: _Node, begin_s: float, row: int, least_s: float) -> Iterator[tuple[_Node, float, int]]:
    """Nodes that are wide enough, with where they begin and their row."""
    if row >= _MOST_ROWS:
        return
    yield node, begin_s, row
    for inner in sorted(node.callees.values(), key=lambda one: -one.seconds):
        if inner.seconds < least_s:
            return
        yield from _laid_out(inner, begin_s, row + 1, least_s)
        begin_s += inner.seconds


def _draw(axes: Axes, node: _Node, begin_s: float, row: int, inches_per_s: float, *, bold: bool) -> None:
    style: Any = {"facecolor": _COLOURS[node.origin], "edgecolor": PAPER, "linewidth": 0.4}
    axes.add_patch(Rectangle((begin_s * 1e3, row), node.seconds * 1e3, 0.94, **style))
    room = node.seconds * inches_per_s - 0.06
    if room < _NAMED:
        return
    name, file = node.frame.name.rpartition("<locals>.")[2], node.frame.file.rpartition("/")[2]
    words = shortened(drawable(f"{name} ({file})" if file else name), SMALL, room)
    weight = "bold" if bold else "normal"
    x = (begin_s + 0.03 / inches_per_s) * 1e3
    axes.text(x, row + 0.44, words, fontsize=SMALL, va="center", ha="left", color=ON_LIGHT, weight=weight)
