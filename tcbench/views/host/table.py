"""A host profile in words: the table of `tcbench profile --host`, and the line that `explain` has of it."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from tcbench.analysis.host_time import FunctionTime, Origin, functions, longest_phase, phase_s
from tcbench.core.host_profile import Frame, HostProfile
from tcbench.present.format import counted, milliseconds, percent
from tcbench.present.tables import open_table

_ORIGINS: dict[Origin, str] = {"tcbench": "tcbench", "framework": "framework", "compute": "NumPy, driver"}
_MOST = 6
"""Functions of a phase that are shown."""
_LEAST = 0.01
"""Of a phase: functions below it are not shown by themselves."""


def table(profile: HostProfile) -> Table:
    """Self time by function, phase by phase, and whose code it is."""
    table = open_table()
    for heading in ("phase", "function"):
        table.add_column(heading, overflow="fold")
    table.add_column("self", justify="right", no_wrap=True)
    table.add_column("of phase", justify="right", no_wrap=True)
    table.add_column("whose", no_wrap=True)
    for phase in profile.phases:
        those = functions(profile, phase)
        if not those:
            continue
        if table.row_count:
            table.add_row()
        table.add_row(phase, _shares(those), milliseconds(phase_s(profile, phase)), "", "", style="bold")
        shown = [one for one in those[:_MOST] if one.share >= _LEAST]
        for one in shown:
            table.add_row("", name(one.frame), milliseconds(one.seconds), percent(one.share), _ORIGINS[one.origin])
        rest_s = sum(one.seconds for one in those[len(shown) :])
        if rest_s:
            many = counted(len(those) - len(shown), "other function")
            share = percent(rest_s / phase_s(profile, phase))
            table.add_row("", Text(many, style="dim"), milliseconds(rest_s), share, "")
    return table


def _shares(those: tuple[FunctionTime, ...]) -> str:
    """Whose code a phase's time is."""
    total = sum(one.seconds for one in those)
    spent = {whose: sum(one.seconds for one in those if one.origin == whose) / total for whose in _ORIGINS}
    return ", ".join(f"{_ORIGINS[whose]} {percent(share, 0)}" for whose, share in spent.items() if share)


def name(frame: Frame) -> str:
    """A function with its place."""
    return f"{frame.name}  {frame.file}:{frame.line}" if frame.file else frame.name


def overhead(profile: HostProfile) -> str:
    """One line: the tool, its samples, and the time that it cost."""
    how = f"sampled from outside by py-spy, {counted(profile.samples, 'sample')}" if profile.samples else "by cProfile"
    return (
        f"{profile.label} on {profile.device_name}: {counted(profile.steps, 'step')} {how}; a step took "
        f"{milliseconds(profile.step_s)} meanwhile, {milliseconds(profile.timed_step_s)} without: "
        f"overhead {percent(profile.overhead)}, where timed steps vary by {percent(profile.timed_spread)}"
    )


def costliest(profile: HostProfile, verdict: str) -> str | None:
    """One line: the costliest function of the phase that holds the step back; None where the host does not."""
    phase = longest_phase(profile, verdict)
    if phase is None:
        return None
    first = functions(profile, phase)[0]
    return (
        f"{profile.label}: {phase} holds the step back; costliest function there: {name(first.frame)} "
        f"({_ORIGINS[first.origin]}), {percent(first.share)} of the phase by {profile.tool}"
    )
