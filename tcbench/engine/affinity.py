"""The binding of a host's ranks to cores, so that no rank waits for the threads of another."""

import os
from collections.abc import Sequence
from pathlib import Path

from tcbench.hardware import kernel

_TOPOLOGY = Path("/sys/devices/system/cpu")


def share(masks: Sequence[frozenset[int]], local_rank: int) -> tuple[tuple[int, ...], str]:
    """Return the processors to bind a rank to, and in words how the ranks of its host share processors.

    `masks` has the processors that each rank may use when it starts. If all masks are equal, their processors are
    divided equally among the ranks, with hardware threads of a core kept together. If the masks are disjoint, the
    launcher has already bound the ranks. If there are fewer processors than ranks, or if the masks overlap otherwise,
    the ranks should not be bound, and no processors are returned."""
    mask = masks[local_rank]
    if len(masks) == 1:
        return tuple(sorted(mask)), "alone on its host"
    if len(set(masks)) == 1:
        each = len(mask) // len(masks)
        if each == 0:
            return (), f"{len(masks)} ranks on {len(mask)} processors, not bound"
        ordered, noun = sorted(mask, key=_place), "processor" if each == 1 else "processors"
        return tuple(sorted(ordered[local_rank * each : (local_rank + 1) * each])), f"{each} {noun} to each rank"
    if sum(map(len, masks)) == len(frozenset().union(*masks)):
        return tuple(sorted(mask)), "bound by the launcher"
    return (), "overlapping, by the launcher"


def first(count: int | None = None) -> tuple[int, ...]:
    """Return the first `count` processors (None: all) that this process may use, sorted by number. They are counted in
    the order in which ranks get them: core by core."""
    return tuple(sorted(sorted(kernel.affinity(), key=_place)[:count]))


def split_core(processors: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split processors into the first core, with all of its hardware threads, and the rest. If all belong to one core,
    or if Linux does not report cores, the first part is one processor. A single processor is returned as both
    parts."""
    core = tuple(processor for processor in processors if _place(processor)[:2] == _place(processors[0])[:2])
    if len(core) == len(processors):
        core = tuple(processors[:1])
    rest = tuple(processor for processor in processors if processor not in core)
    return (core, rest) if rest else (core, core)


def bind(processors: Sequence[int]) -> None:
    """Bind the calling thread, and the threads that it starts later, to these processors. With no processors, change
    nothing."""
    if processors:
        os.sched_setaffinity(0, processors)


def _place(processor: int) -> tuple[int, int, int]:
    """Return a sort key that puts processors of the same package, and of the same core, next to each other."""
    return _topology(processor, "physical_package_id"), _topology(processor, "core_id"), processor


def _topology(processor: int, name: str) -> int:
    """Return the number in the file `name` of the processor's topology in /sys, or 0 if Linux does not report it."""
    try:
        return int(kernel.text(_TOPOLOGY / f"cpu{processor}" / "topology" / name))
    except ValueError:
        return 0
