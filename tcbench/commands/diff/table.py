"""A step's change in words: tables on a terminal, sentences, and JSON."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tcbench.commands.diff.differences import Diff, DiffSide, Level, StepPart
from tcbench.core.text import digits
from tcbench.show.bottlenecks import doubt_words, doubtful
from tcbench.show.document import document, fields
from tcbench.show.format import counted, limits, listed, milliseconds, quotient
from tcbench.show.naming import is_simulated, simulation_lines
from tcbench.show.notes import Caution
from tcbench.show.sides import UNNAMED, Labels, allowed_lines
from tcbench.show.tables import COUNT, Column, Kind, Table

_LEAST_SHARE = 0.01
"""Smallest relative change of a step, if it is not certain, whose parts are shown as shares."""


def signed(seconds: float) -> str:
    """Return a time with its sign: `+2.13 ms`, `-40.1 ms`."""
    if abs(seconds) < 1e-9:  # below the resolution of any clock: a rounding error of sums
        return "0 ms"
    return f"{'+' if seconds >= 0 else '-'}{milliseconds(abs(seconds))}"


def headline(diff: Diff) -> str:
    """Return the step's change and the part with the largest share in it: `step 22.1 ms -> 24.3 ms: +2.2 ms (+9.8%);
    forward +2.13 ms, 96% of it`."""
    step = diff.step
    base_s, current_s = step.base_s or 0.0, step.current_s or 0.0
    within = f", 95% interval {limits(step.change, signed)}" if step.change else ""
    change = f"{signed(step.change_s)} ({step.change_s / base_s:+.1%}{within})" if base_s else ""
    parts = [f"step {milliseconds(base_s)} -> {milliseconds(current_s)}: {change}"]
    if not shares_are_meaningful(diff):
        parts.append("it may not have changed at all")
    elif diff.levels:
        most = max(diff.levels[0].parts, key=lambda part: part.change_s * math.copysign(1, step.change_s))
        parts.append(f"{most.name} {signed(most.change_s)}, {share(diff, most)} of it")
        doubts = [
            f"{name} {doubt}"
            for name, side in (("base", diff.base), ("current", diff.current))
            if (doubt := doubt_words(side.bottleneck))
        ]
        parts += [f"doubtful: {listed(doubts)}"] if doubts else []
    return "; ".join(parts)


def shares_are_meaningful(diff: Diff) -> bool:
    """Return whether the step changed enough for shares of its change to be meaningful."""
    step = diff.step
    return step.decided or (step.change is None and abs(step.change_s) >= _LEAST_SHARE * (step.base_s or 0.0))


def share(diff: Diff, part: StepPart) -> str:
    """Return the part's share of the step's change: `96%`; empty if shares are not meaningful."""
    share = diff.share(part)
    return "" if share is None or not shares_are_meaningful(diff) else f"{share:.0%}".replace("-0%", "0%")


def shown_parts(level: Level, top: int) -> tuple[list[StepPart], StepPart | None]:
    """Return the `top` parts that changed most, and the sum of all others as one part. A single other part is returned
    among the first ones, with None in place of the sum."""
    parts, rest = list(level.parts[:top]), level.parts[top:]
    if len(rest) < 2:  # one line for one part
        return list(level.parts[: top + 1]), None
    times = zip(*((part.base_s, part.current_s) for part in rest), strict=True)
    base_s, current_s = (math.fsum(filter(None, seconds)) for seconds in times)
    return parts, StepPart(f"{len(rest)} others", None, base_s, current_s)


_Row = tuple[StepPart, str, str]
"""A part, its style and a remark."""


def tables(diff: Diff, top: int = 10) -> list[tuple[str, Table[_Row]]]:
    """Return a heading and a table per level. Parts beyond the first `top` are summed up."""
    clocks = {"host": ", on the host", "device": ", on the GPU"}
    return [
        (
            "Kernels and copies" if level.name == "kernels" else level.name.capitalize() + clocks[level.clock],
            _table(diff, level, top),
        )
        for level in diff.levels
    ]


def _table(diff: Diff, level: Level, top: int) -> Table[_Row]:
    """Return the table of one level."""
    parts, rest = shown_parts(level, top)
    step = StepPart("step", None, diff.step.base_s, diff.step.current_s, diff.step.change)
    rows = [(part, "" if part.decided or part.change is None else "dim", fate(part)) for part in parts]
    rows += [(rest, "dim", "")] if rest else []
    rows += [(level.rest, "dim", "the rest")] if level.has_rest else []
    rows += [(step, "bold", fate(diff.step))]
    columns: list[Column[_Row]] = [
        Column(level.name.removesuffix("s"), lambda row: row[0].name, ratio=1),
        *([Column[_Row]("phase", lambda row: row[0].phase)] if level.has_phases else []),
        Column("base", lambda row: "-" if row[0].base_s is None else row[0].base_s, _TIME),
        Column("current", lambda row: "-" if row[0].current_s is None else row[0].current_s, _TIME),
        Column("change", lambda row: row[0].change_s, CHANGE),
        Column("ratio", lambda row: row[0].ratio, Kind(quotient)),
        Column("of the\nchange", lambda row: share(diff, row[0]), COUNT),
        *([Column[_Row]("launches", lambda row: _launches(row[0]), COUNT)] if level.name == "kernels" else []),
        Column("", lambda row: row[2]),
    ]
    return Table([replace(column, style=lambda row: row[1]) for column in columns], rows, header="dim")


CHANGE = Kind(signed)
_TIME = Kind(lambda seconds: signed(seconds).removeprefix("+"))


def fate(part: StepPart) -> str:
    """Return what became of the part, with its interval if there is one: `grew (+1.9 ms to +2.4 ms)`. A change that is
    not certain `may be noise`."""
    if part.change is None:
        return part.kind
    return f"{part.kind if part.decided else 'may be noise'} ({limits(part.change, signed)})"


def _launches(part: StepPart) -> str:
    """Return a kernel's launches per step: `12 -> 14`."""
    if part.base_launches is None and part.current_launches is None:
        return ""
    before, after = (digits(n or 0) for n in (part.base_launches, part.current_launches))
    return before if before == after else f"{before} -> {after}"


def head(diff: Diff, labels: Labels) -> str:
    """Return the two lines that name the sides."""
    base, current = (
        f"{name}: {side.label} on {side.device_name} ({counted(side.trials, 'trial')}, {counted(side.steps, 'step')})"
        for name, side in zip((labels.base, labels.current), (diff.base, diff.current), strict=True)
    )
    return f"base {base}\ncurrent {current}"


def notes(diffs: Sequence[Diff], of_timelines: bool) -> list[str]:
    """Return notes on how to read the tables."""
    remarks = ["of the change: the part's share of the step's change; with the rest, 100%."]
    if any(diff.step.change is None for diff in diffs):
        pass_ = "profile" if of_timelines else "trial"
        remarks.append(Caution(f"one {pass_} a side gives no interval: any of these changes may be noise."))
    if any(diff.step.change is not None for diff in diffs):
        remarks.append("may be noise: the 95% interval of the change over trials includes 0.")
    remarks += doubtful((side.label, side.bottleneck) for diff in diffs for side in (diff.base, diff.current))
    differences = dict.fromkeys(difference for diff in diffs for difference in diff.differences)
    remarks += [Caution(f"also differs: {line}") for line in allowed_lines(differences)]
    return remarks


def simulation_notes(diffs: Iterable[Diff]) -> list[str]:
    """Return a note for each simulation among the sides."""
    return simulation_lines(side.environment for diff in diffs for side in (diff.base, diff.current))


def to_json(diffs: Sequence[Diff], labels: Labels = UNNAMED, missing: Sequence[str] = ()) -> str:
    """Return all parts of all levels as JSON. Times are in seconds per step."""
    cells = [
        {
            "base": _side(diff.base),
            "current": _side(diff.current),
            "differences": diff.differences,
            "step": _part(diff, diff.step),
            "levels": [
                {
                    **fields(level, "level=name clock"),
                    "parts": [_part(diff, part) for part in level.parts],
                    "rest": _part(diff, level.rest),
                }
                for level in diff.levels
            ],
        }
        for diff in diffs
    ]
    return document("tcbench-diff", **fields(labels, "base current"), not_paired=missing, cells=cells)


def _side(side: DiffSide) -> dict[str, Any]:
    """Return one side as JSON."""
    facts = fields(side, "label device_name cell_key=cell.key trials steps")
    return facts | {"doubtful": doubt_words(side.bottleneck) or None, "simulated": is_simulated(side.environment)}


def _part(diff: Diff, part: StepPart) -> dict[str, Any]:
    """Return a part as JSON, with its share of the step's change."""
    return {
        **fields(part, "name phase base_s current_s change_s change_interval_s=change decided ratio"),
        "share": diff.share(part),
        **fields(part, "kind base_launches_per_step=base_launches current_launches_per_step=current_launches"),
    }
