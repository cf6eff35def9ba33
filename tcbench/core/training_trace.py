"""A trace of any training program, as a framework's profiler recorded it: GPU activities, API calls and host ranges.

Readers in `tcbench.tracing` produce this form; `tcbench.analysis.trace_verdict` judges it. In contrast to a
`Recording`, nothing in it was arranged by tcbench: there may be no steps, and ranges may have any name. Times are
integer nanoseconds of the trace's own clock, which the host and all devices share.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tcbench.core.recording import Activity, ApiCall

ThreadKey = tuple[int, int]
"""A thread: the ids of its process and of the thread."""

NO_CORRELATION = 0
"""The correlation of an activity or a call that the trace links to nothing."""

Overhead = Literal["stacks", "modules", "shapes", "memory"]
"""Extras that a profiler records on the host during the steps, so that the host becomes slower."""


class UserRange(msgspec.Struct, frozen=True):
    """A named range on a host thread, from the user's code or from the framework's own marks."""

    name: str
    thread: ThreadKey
    begin_ns: int
    end_ns: int


class Collective(msgspec.Struct, frozen=True):
    """A host range in which a thread started a collective operation of `bytes` per rank among `ranks`."""

    name: str
    bytes: int
    ranks: int
    thread: ThreadKey
    begin_ns: int
    end_ns: int

    @property
    def is_all_reduce(self) -> bool:
        """Whether each rank gets the sum over all ranks."""
        return "allreduce" in self.name.replace("_", "").lower()


@dataclass(frozen=True, kw_only=True)
class TrainingTrace:
    """A trace of one process or several.

    - `source`: the profiler that recorded it.
    - `device_name`: the name of the first GPU; `device_names`: those of the GPUs whose numbers are known.
    - `begin_ns`, `end_ns`: the extent of the whole recording.
    - `activities`: the work of all GPUs, sorted by its begin.
    - `operators`: per thread the time in the framework's operators, as sorted disjoint intervals.
    - `backward`: per thread the time in operators of automatic differentiation, in the same form.
    - `recomputation`: per thread the time in which the backward pass computes activations again (checkpointing).
    - `process_groups`: the name and ranks of the group of a collective, by the device and correlation of its kernel.
    - `overheads`: what was recorded besides times.
    - `shows_accelerator`: whether anything in the trace shows that the program sees a GPU or another accelerator.
    - `invalid_events`: the number of events that were left out because they end before they begin.
    """

    source: Literal["pytorch", "nsys"]
    device_name: str
    begin_ns: int
    end_ns: int
    activities: tuple[Activity, ...]
    calls: tuple[ApiCall, ...]
    ranges: tuple[UserRange, ...]
    operators: Mapping[ThreadKey, tuple[tuple[int, int], ...]]
    device_names: Mapping[int, str] = field(default_factory=dict)
    backward: Mapping[ThreadKey, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    recomputation: Mapping[ThreadKey, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    process_groups: Mapping[tuple[int, int], str] = field(default_factory=dict)
    overheads: tuple[Overhead, ...] = ()
    rank: int | None = None
    ranks: int = 1
    shows_accelerator: bool = False
    invalid_events: int = 0

    @property
    def is_on_cpu(self) -> bool:
        """Whether the program trained on the CPU: it ran operators or ranges, and nothing in the trace shows an
        accelerator."""
        return bool(self.operators or self.ranges) and not self.shows_accelerator
