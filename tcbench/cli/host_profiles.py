"""`tcbench profile --host`, and the host profiles that `tcbench explain` finds beside results."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcbench.cli.options import ANOTHER_FOLDER
from tcbench.core import files
from tcbench.core.errors import SelectionError

if TYPE_CHECKING:
    from tcbench.analysis.explanation import Explanation
    from tcbench.core.host_profile import HostProfile, HostTool
    from tcbench.core.messages import Message
    from tcbench.core.record import Cell, Record
    from tcbench.run.plan import Plan, PlannedCell


_LEAST_S = 8.0
"""The least length of a profile: py-spy needs a part of a second to attach, and samples 100 times a second."""


def tool_for(asked: str) -> tuple[HostTool, str | None]:
    """The tool that --tool names, or the first that can be used, and a note where that is not py-spy. Raises
    SelectionError."""
    from tcbench.tracing import host

    if asked == "cprofile":
        return "cProfile", None
    if asked not in ("auto", "py-spy"):
        raise SelectionError(f"--tool {asked} records a timeline; with --host, take py-spy, cprofile or auto")
    py_spy = host.find()
    problem = host.problem(py_spy) if py_spy else "py-spy is not installed: uv sync --extra host"
    if problem is None:
        return "py-spy", None
    if asked == "py-spy":
        raise SelectionError(f"--tool py-spy: {problem}")
    return "cProfile", f"{problem}; cProfile instead, which slows Python down: see the overhead"


def take(
    plan: Plan, planned: PlannedCell, tool: HostTool, stderr: Any, quiet: bool
) -> tuple[Record, HostProfile | None]:
    """Run one trial, whose profiled pass is looked at; the profile is None where the trial failed. Raises TraceError.
    KeyboardInterrupt ends the worker and passes through."""
    from tcbench.analysis.eta import estimate
    from tcbench.core import recording
    from tcbench.core.messages import Building, ProfileRequest, Stepped
    from tcbench.run.runner import Launch, Runner
    from tcbench.show.progress import RunProgress
    from tcbench.tracing import host

    with files.scratch(Path(tempfile.gettempdir())) as folder:
        request = ProfileRequest(str(folder / "recording.json"), host=tool, least_s=_LEAST_S)
        py_spy = host.find() if tool == "py-spy" else None
        pid: int | None = None
        sampler: host.PySpy | None = None
        with RunProgress(stderr, estimate([planned.cell]), 1, quiet) as progress:

            def listen(cell: Cell, trial: int, message: Message) -> None:
                nonlocal pid, sampler
                if isinstance(message, Building):
                    pid = message.pid or pid
                elif (
                    py_spy and pid and sampler is None and isinstance(message, Stepped) and message.stage == "profiled"
                ):
                    sampler = host.PySpy(py_spy, pid, folder)
                progress.listen(cell, trial, message)

            runner = Runner(
                "profile",
                plan.timeout_s,
                listen=listen,
                launch=Launch(request=request),
            )
            (record,) = runner.run([(planned, 0)])
        if record.status != "ok":
            return record, None
        raw = sampler.raw() if sampler else ""
        return record, host.profile_of(record, recording.decode(Path(request.path).read_bytes()), tool, raw)


def keep(profile: HostProfile, stem: Path) -> tuple[Path, ...]:
    """Write the flame graph and the speedscope file. Raises StoreError."""
    from tcbench.show import charts
    from tcbench.show.charts.flame import flame_chart
    from tcbench.tracing import host

    graph, scope = stem.with_name(stem.name + ".svg"), stem.with_name(stem.name + host.SUFFIX)
    charts.save(flame_chart(profile), graph, ANOTHER_FOLDER)
    host.write(profile, scope)
    return graph, scope


def lines(explained: Iterable[Explanation], out: Path) -> list[str]:
    """A line for each cell that the host or the input holds back and of which `out` has a host profile."""
    from tcbench.show.host_profile import costliest
    from tcbench.show.session import apart
    from tcbench.tracing import host

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
                said += [line, *filter(None, [apart(profile.taken_at, profile.timed_step_s, one.summary)])]
    return said
