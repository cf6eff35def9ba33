"""A worker's recording of its profiled pass: begin and end of everything on the host, and the GPU's activities.

Owns the form in which that travels from the worker to the process that started it: times are nanoseconds of
CLOCK_MONOTONIC, which is one clock for all processes of a Linux machine (clock_gettime(2)) and the one that
`time.perf_counter_ns` reads there. Imports only the standard library and the validation library.
"""

from typing import Literal

import msgspec

HostKind = Literal["step", "phase", "layer"]
ActivityKind = Literal["kernel", "copy", "memset", "graph", "input"]


class Title(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's facts beside its times, as a timeline shows them."""

    label: str
    device: str
    device_name: str
    batch_size: int
    unit: str = "images"


class HostSpan(msgspec.Struct, frozen=True, array_like=True):
    """Something that the thread of the steps did: a step, a phase of it, or a layer in a phase."""

    kind: HostKind
    name: str
    step: int | None
    phase: str | None
    begin_ns: int
    end_ns: int


class ApiCall(msgspec.Struct, frozen=True, array_like=True):
    """A call of CUDA's API. `correlation` ties it to the activities that it caused."""

    name: str
    thread: int
    correlation: int
    begin_ns: int
    end_ns: int


class Activity(msgspec.Struct, frozen=True, array_like=True):
    """Something that a GPU did; or, as "input", that the threads of a modelled input did. `graph_node`: the node of a
    captured graph that it was, where that is known. `graph`: the captured graph that it belongs to."""

    kind: ActivityKind
    name: str
    stream: int
    correlation: int
    begin_ns: int
    end_ns: int
    bytes: int | None = None
    graph_node: int | None = None
    graph: int | None = None


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A profiled pass. `thread` is the system's id of the thread that ran it. `graph_phases` says which phase's work a
    captured graph's node was; `dropped` counts activities that the tool lost."""

    thread: int
    phases: tuple[str, ...]
    spans: tuple[HostSpan, ...]
    calls: tuple[ApiCall, ...] = ()
    activities: tuple[Activity, ...] = ()
    graph_phases: dict[int, str] = {}
    dropped: int = 0


_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
"""CUPTI's CUpti_ActivityMemcpyKind."""


def copy_name(kind: int) -> str:
    """The name of a copy of one of CUPTI's kinds."""
    return f"memcpy {_COPY_KINDS.get(kind, '')}".strip()


def decode(data: bytes) -> Recording:
    """Raises msgspec.DecodeError for anything but a whole recording."""
    return msgspec.json.decode(data, type=Recording)
