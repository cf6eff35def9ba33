"""The kernels of a training trace's window, with their time. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from tcbench.analysis.kernel_kinds import KernelKind, kernel_kind
from tcbench.analysis.kernel_names import short_kernel_names
from tcbench.analysis.trace_window import Window
from tcbench.core.groups import grouped


@dataclass(frozen=True)
class TraceKernel:
    """A kernel or a copy: what all launches with its short name have in common, and their time in the window."""

    name: str
    kind: KernelKind
    launches: int
    time_ns: int


def kernel_times(window: Window) -> tuple[TraceKernel, ...]:
    """Return the kernels and copies of a window, the longest first."""
    names = short_kernel_names({activity.name for activity in window.activities})
    activities = grouped((names[activity.name], activity) for activity in window.activities)
    kernels = [
        TraceKernel(
            name,
            kernel_kind(works[0].name) if works[0].kind in ("kernel", "graph") else "copy",
            len(works),
            sum(min(work.end_ns, window.end_ns) - max(work.begin_ns, window.begin_ns) for work in works),
        )
        for name, works in activities.items()
    ]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.time_ns))


def unknown_share(kernels: Sequence[TraceKernel]) -> float:
    """Return the share of the time of all kernels and copies that no rule knows the kind of."""
    total_ns = sum(kernel.time_ns for kernel in kernels)
    return sum(kernel.time_ns for kernel in kernels if kernel.kind == "other") / total_ns if total_ns else 0.0
