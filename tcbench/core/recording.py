"""A worker's recording of its profiled pass: spans on the host and activities of the GPU.

Workers send it to the process that started them. Times are nanoseconds of CLOCK_MONOTONIC, which is the same clock in
all processes of a Linux machine (clock_gettime(2)) and the one that `time.perf_counter_ns` reads. Imports only the
standard library and msgspec."""

from typing import Literal

import msgspec

HostKind = Literal["step", "phase", "layer"]
ActivityKind = Literal["kernel", "copy", "memset", "graph", "input"]


class Title(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a cell in a timeline's title."""

    label: str
    device: str
    device_name: str
    batch_size: int
    unit: str = "images"


class HostSpan(msgspec.Struct, frozen=True, array_like=True):
    """A time span of the thread that runs the steps: a step, one of its phases, or a layer in a phase."""

    kind: HostKind
    name: str
    step: int | None
    phase: str | None
    begin_ns: int
    end_ns: int


class ApiCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call of the CUDA or HIP API. `correlation` links it to the activities that it caused; it is unique within
    `process`, the id of the process that called."""

    name: str
    thread: int
    correlation: int
    begin_ns: int
    end_ns: int
    process: int = 0


class Activity(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An activity of a GPU, or (kind "input") of an input thread, in which case `stream` is the thread's number.
    `graph` is the captured graph that it belongs to, if any, and `graph_node` its node there, if known. Streams are
    numbered per `device`, and correlations per `process`."""

    kind: ActivityKind
    name: str
    stream: int
    correlation: int
    begin_ns: int
    end_ns: int
    bytes: int | None = None
    graph_node: int | None = None
    graph: int | None = None
    device: int = 0
    process: int = 0


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded profiled pass. `thread` is the system's id of the thread that ran the steps. `graph_phases` maps nodes
    of captured graphs to phases. `dropped` counts the activities that the recording tool lost."""

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
    """Return the name of a memory copy of one of CUPTI's kinds."""
    return f"memcpy {_COPY_KINDS.get(kind, '')}".strip()


def decode(content: bytes) -> Recording:
    """Return the recording in JSON. Raises msgspec.DecodeError if it is incomplete or not valid."""
    return msgspec.json.decode(content, type=Recording)
