"""Cores for the ranks of a host: each gets some of its own, so that none waits for another's threads."""

import os
from collections.abc import Sequence
from pathlib import Path

from tcbench.hardware import kernel

_TOPOLOGY = Path("/sys/devices/system/cpu")


def share(masks: Sequence[frozenset[int]], local_rank: int) -> tuple[tuple[int, ...], str]:
    """The cores of one of a host's ranks, and in words how they were shared. `masks`: the processors that each rank may
    run on as it was started. Where these are all the same each rank gets as many of them, whole cores together; where
    no two have one in common the launcher has shared them. No cores: it stays where it is."""
    own = masks[local_rank]
    if len(masks) == 1:
        return tuple(sorted(own)), "alone on its host"
    if all(mask == own for mask in masks):
        each = len(own) // len(masks)
        if each == 0:
            return (), f"{len(masks)} ranks on {len(own)} processors, not bound"
        ordered, noun = sorted(own, key=_place), "processor" if each == 1 else "processors"
        return tuple(sorted(ordered[local_rank * each : (local_rank + 1) * each])), f"{each} {noun} to each rank"
    if sum(map(len, masks)) == len(frozenset().union(*masks)):
        return tuple(sorted(own)), "bound by the launcher"
    return (), "overlapping, by the launcher"


def first(count: int | None = None) -> tuple[int, ...]:
    """Return so many of the processors that this process may use (None: all): those that the first of a host's ranks
    would get."""
    return tuple(sorted(sorted(kernel.affinity(), key=_place)[:count]))


def split_core(processors: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split off the first core, with all of its hardware threads. Both parts are all processors where there is only
    one. Where they are hardware threads of one core, or Linux does not tell, the first part is one processor."""
    core = tuple(processor for processor in processors if _place(processor)[:2] == _place(processors[0])[:2])
    if len(core) == len(processors):
        core = tuple(processors[:1])
    rest = tuple(processor for processor in processors if processor not in core)
    return (core, rest) if rest else (core, core)


def bind(processors: Sequence[int]) -> None:
    """Let the calling thread, and those it starts from now on, run on these processors alone; none: on all it may."""
    if processors:
        os.sched_setaffinity(0, processors)


def _place(processor: int) -> tuple[int, int, int]:
    """Orders processors so that those of one package, and of one core, stand together."""
    return _fact(processor, "physical_package_id"), _fact(processor, "core_id"), processor


def _fact(processor: int, name: str) -> int:
    try:
        return int(kernel.text(_TOPOLOGY / f"cpu{processor}" / "topology" / name))
    except ValueError:
        return 0
