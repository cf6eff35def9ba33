"""A host profile in words and as files: what `tcbench profile --host` leaves, and the lines of it in `explain`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tcbench.analysis.explanation import Explanation
from tcbench.analysis.host_time import FunctionTime, Origin, functions, longest_phase, phase_s
from tcbench.core.host_profile import Frame, HostProfile
from tcbench.present.format import counted, milliseconds, percent
from tcbench.present.naming import another_session
from tcbench.present.options import ANOTHER_FOLDER
from tcbench.present.tables import SECONDS, SHARE, Column, Table
from tcbench.tracing import host

_ORIGINS: dict[Origin, str] = {"tcbench": "tcbench", "framework": "framework", "compute": "NumPy, driver"}
_MOST = 6
"""Functions of a phase that are shown."""
_LEAST = 0.01
"""Of a phase: functions below it are not shown by themselves."""


@dataclass(frozen=True)
class _FunctionRow:
    """A phase, or a function of it."""

    phase: str
    function: str
    self_s: float
    share: float | None = None
    whose: str = ""
    style: str = ""


_COLUMNS: tuple[Column[_FunctionRow], ...] = (
    Column("phase", lambda row: row.phase),
    Column("function", lambda row: row.function),
    Column("self", lambda row: row.self_s, SECONDS),
    Column("of phase", lambda row: row.share, SHARE),
    Column("whose", lambda row: row.whose, wraps=False),
)


def table(profile: HostProfile) -> Table[_FunctionRow]:
    """Self time by function, phase by phase, and whose code it is."""
    rows: list[_FunctionRow | None] = []
    for phase in profile.phases:
        entries = functions(profile, phase)
        if not entries:
            continue
        total_s = phase_s(profile, phase)
        rows += [*([None] if rows else []), _FunctionRow(phase, _shares(entries), total_s, style="bold")]
        shown = [entry for entry in entries[:_MOST] if entry.share >= _LEAST]
        rows += [
            _FunctionRow("", name(entry.frame), entry.seconds, entry.share, _ORIGINS[entry.origin]) for entry in shown
        ]
        if rest_s := sum(entry.seconds for entry in entries[len(shown) :]):
            others = counted(len(entries) - len(shown), "other function")
            rows.append(_FunctionRow("", others, rest_s, rest_s / total_s, style="dim"))
    return Table([replace(column, style=lambda row: row.style) for column in _COLUMNS], rows)


def _shares(entries: tuple[FunctionTime, ...]) -> str:
    """Whose code a phase's time is."""
    total = sum(entry.seconds for entry in entries)
    spent = {whose: sum(entry.seconds for entry in entries if entry.origin == whose) / total for whose in _ORIGINS}
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


def keep(profile: HostProfile, stem: Path) -> tuple[Path, ...]:
    """Write the flame graph and the speedscope file. Raises StoreError."""
    from tcbench.present.charts.files import save
    from tcbench.views.host.chart import flame_chart

    graph, scope = stem.with_name(stem.name + ".svg"), stem.with_name(stem.name + host.SUFFIX)
    save(flame_chart(profile), graph, ANOTHER_FOLDER)
    host.write(profile, scope)
    return graph, scope


def lines(explained: Iterable[Explanation], out: Path) -> list[str]:
    """A line for each cell that the host or the input holds back and of which `out` has a host profile."""
    said: list[str] = []
    profiles: dict[str, tuple[HostProfile, ...]] = {}
    for one in explained:
        cell, machine = one.summary.cell, one.summary.machine
        if one.bottleneck is None or machine is None or Path(machine).name != machine:
            continue
        for profile in profiles.setdefault(machine, host.newest(out / machine)):
            same = (profile.label, profile.machine, profile.device, profile.model, profile.image_size)
            if same != (cell.label, machine, cell.device, cell.model, cell.image_size):
                continue
            if line := costliest(profile, one.bottleneck.verdict):
                said += [line, *filter(None, [another_session(profile.taken_at, profile.timed_step_s, one.summary)])]
    return said
