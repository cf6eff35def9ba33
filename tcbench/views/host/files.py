"""`tcbench profile --host`, and the host profiles that `tcbench explain` finds beside results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tcbench.present.options import ANOTHER_FOLDER

if TYPE_CHECKING:
    from tcbench.analysis.explanation import Explanation
    from tcbench.core.host_profile import HostProfile


def keep(profile: HostProfile, stem: Path) -> tuple[Path, ...]:
    """Write the flame graph and the speedscope file. Raises StoreError."""
    from tcbench.present.charts.files import save
    from tcbench.tracing import host
    from tcbench.views.host.chart import flame_chart

    graph, scope = stem.with_name(stem.name + ".svg"), stem.with_name(stem.name + host.SUFFIX)
    save(flame_chart(profile), graph, ANOTHER_FOLDER)
    host.write(profile, scope)
    return graph, scope


def lines(explained: Iterable[Explanation], out: Path) -> list[str]:
    """A line for each cell that the host or the input holds back and of which `out` has a host profile."""
    from tcbench.present.session import apart
    from tcbench.tracing import host
    from tcbench.views.host.table import costliest

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
