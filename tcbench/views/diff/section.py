"""Why cells changed against the base: a waterfall of phases for each, from one step to the other."""

from __future__ import annotations

from collections.abc import Sequence

from tcbench.analysis.diff import Diff, Part
from tcbench.present.format import counted, doubtful, milliseconds
from tcbench.present.page import drawings
from tcbench.present.page.page import Field, Prose, Section, Table, say, strong
from tcbench.present.page.wording import columns, figure
from tcbench.present.sides import Labels
from tcbench.views.diff.chart import diff_chart
from tcbench.views.diff.table import fate, share, signed


def section(diffs: Sequence[Diff], base: str) -> Section | None:
    """The cells that surely changed; None where none did."""
    if not diffs:
        return None
    lead = say(
        strong(counted(len(diffs), "cell")),
        f" surely changed against {base}; the parts of a step and its rest add up to the change.",
    )
    doubts = doubtful((side.label, side.doubt) for one in diffs for side in (one.base, one.current))
    title = f"From the step of {base} to this one"
    drawing = drawings.figure(
        lambda: diff_chart(diffs, Labels(base), title=title), title, "changes", _table(diffs), doubts
    )
    return Section("changes", "Why it changed", (Prose((lead,)), drawing))


def _table(diffs: Sequence[Diff]) -> Table:
    names = columns("cell", "part", "#base", "#current", "#change", "#of the change", "remarks")
    rows = tuple(
        _row(diff, part) for diff in diffs for level in diff.levels for part in (*level.parts, level.rest, diff.step)
    )
    return Table("Parts of the steps that changed", names, rows)


def _row(diff: Diff, part: Part) -> tuple[Field, ...]:
    def time(seconds: float | None) -> Field:
        return figure(seconds, None if seconds is None else milliseconds(seconds))

    return (
        Field(diff.current.label),
        Field(part.name, strong=part is diff.step),
        time(part.base_s),
        time(part.current_s),
        figure(part.change_s, signed(part.change_s)),
        figure(diff.share(part), share(diff, part)),
        Field(fate(part)),
    )
