"""Why cells changed against the base: a waterfall of phases for each, from one step to the other."""

from collections.abc import Sequence

from tcbench.analysis.diff import Diff, StepPart
from tcbench.present.format import counted, doubtful
from tcbench.present.page import drawings
from tcbench.present.page.page import Prose, Section, say, strong
from tcbench.present.sides import Labels
from tcbench.present.tables import COUNT, SECONDS, Column, Field, Table
from tcbench.views.diff.chart import diff_chart
from tcbench.views.diff.table import CHANGE, fate, share


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


_COLUMNS: tuple[Column[tuple[Diff, StepPart]], ...] = (
    Column("cell", lambda row: row[0].current.label),
    Column("part", lambda row: Field(row[1].name, strong=row[1] is row[0].step)),
    Column("base", lambda row: row[1].base_s, SECONDS),
    Column("current", lambda row: row[1].current_s, SECONDS),
    Column("change", lambda row: row[1].change_s, CHANGE),
    Column("of the change", lambda row: Field(share(*row), row[0].share(row[1])), COUNT),
    Column("remarks", lambda row: fate(row[1])),
)


def _table(diffs: Sequence[Diff]) -> Table[tuple[Diff, StepPart]]:
    rows = [(diff, part) for diff in diffs for level in diff.levels for part in (*level.parts, level.rest, diff.step)]
    return Table(_COLUMNS, rows, "Parts of the steps that changed")
