"""Reads reports of Nsight Systems on any program, exported to SQLite.

What this relies on (Nsight Systems User Guide, "SQLite Schema Reference"; files of 2021.1 to 2026.2):

- All times are nanoseconds of one clock.
- `globalTid` and `globalPid` have the thread's id in their lowest 24 bits and the process's id in the next 24.
- `correlationId` links a call to its activities within a process. The table RUNTIME has the driver's calls too. Every
  node of a launched graph has the correlation of the launch; in GRAPH_TRACE a launched graph is one activity.
- `deviceId` numbers the devices that a process sees; TARGET_INFO_CUDA_DEVICE maps it to the machine's devices.
- NVTX_EVENTS has push/pop ranges (event type 59) and start/end ranges (60), with their name as `text` or `textId`.

Waits of the host are calls with telling names: the table SYNCHRONIZATION has no thread. PyTorch's `emit_nvtx` names its
ranges "aten::add, seq = 1, op_id = 2, sizes = [[3]]" (`getNvtxStr` in torch/csrc/profiler/util.cpp).
"""

from __future__ import annotations

import functools
import re
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tcbench.core.errors import TraceError
from tcbench.core.recording import Activity, ActivityKind, ApiCall, copy_name
from tcbench.core.text import plain
from tcbench.core.training_trace import NO_CORRELATION, ThreadKey, TrainingTrace, UserRange
from tcbench.tracing.kineto import AUTOGRAD, MOST_BYTES, MOST_NS, disjoint_times
from tcbench.tracing.nsys_tables import ACTIVITY_TABLES, CALL_TABLES, ExportTables, open_export

FORMAT = "Nsight Systems"

_IS_RANGE = '"eventType" IN (59, 60)'
_EMITTED = re.compile(r", (?=(?:seq|op_id|sizes) = )")
_OPERATOR = re.compile(r"(aten|autograd|c10d?|prims?|quantized|torch|torchvision)::|(nccl|cudnn|cublas)[A-Z]")
_NAMESPACED = re.compile(r"[a-z_]\w*::?\w|record_param_comms")
_MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
"""The names of ENUM_CUDA_MEM_KIND, by their numbers."""

_ACTIVITY_NUMBERS = ("globalPid", "deviceId", "streamId", "correlationId", "graphNodeId", "graphId", "bytes")
_COPY_NUMBERS = ("copyKind", "srcKind", "dstKind")


def read(path: Path, most_bytes: int = MOST_BYTES) -> TrainingTrace:
    """Return the trace in an SQLite export of at most `most_bytes`. Raises TraceError."""
    if path.is_file() and path.stat().st_size > most_bytes:
        remedy = "`tcbench explain --most-mib` raises the limit"
        raise TraceError(f"{path}: the report has more than {most_bytes / 2**20:g} MiB; {remedy}")
    with open_export(path) as tables:
        return _Reader(tables).trace()


class _Reader:
    """Reads the tables of one report."""

    def __init__(self, tables: ExportTables) -> None:
        self._tables = tables
        self._begin_ns, self._end_ns, self._invalid_events = MOST_NS, -MOST_NS, 0
        self._operators: dict[ThreadKey, array[int]] = defaultdict(lambda: array("q"))
        self._backward: dict[ThreadKey, array[int]] = defaultdict(lambda: array("q"))
        self._has_shapes = False

    def trace(self) -> TrainingTrace:
        """Return the trace of all tables."""
        calls = sorted(self._calls(), key=lambda call: (call.begin_ns, -call.end_ns))
        ranges = sorted(self._ranges(), key=lambda user_range: (user_range.begin_ns, -user_range.end_ns))
        activities = sorted(self._activities(calls), key=lambda activity: (activity.begin_ns, activity.end_ns))
        self._tables.check_complete(activities, calls)
        return TrainingTrace(
            format=FORMAT,
            device_name=self._device_name(activities),
            begin_ns=self._begin_ns,
            end_ns=self._end_ns,
            activities=tuple(activities),
            calls=tuple(calls),
            ranges=tuple(ranges),
            operators={thread: disjoint_times(times_ns) for thread, times_ns in self._operators.items()},
            backward={thread: disjoint_times(times_ns) for thread, times_ns in self._backward.items()},
            overheads=("shapes",) if self._has_shapes else (),
            shows_accelerator=True,  # without a table of a GPU nothing is known about it
            invalid_events=self._invalid_events,
        )

    def _events(
        self, table: str, numbers: Sequence[str], names: Sequence[str], where: str = "1"
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table that had ended when the recording did: begin, end, numbers, and names."""
        for row in self._tables.values(table, ("start", "end", *numbers), names, where):
            begin_ns, end_ns, *_ = row
            if end_ns is None:
                continue
            if begin_ns is None or max(abs(begin_ns), abs(end_ns)) > MOST_NS:
                raise ValueError(f"a time in {table} is missing or too large")
            if end_ns < begin_ns:
                self._invalid_events += 1
                continue
            self._begin_ns, self._end_ns = min(self._begin_ns, begin_ns), max(self._end_ns, end_ns)
            yield row

    def _calls(self) -> Iterator[ApiCall]:
        """Yield the calls of the GPU's API in all processes."""
        names: dict[object, str] = {}
        for table in CALL_TABLES:
            for begin_ns, end_ns, global_id, correlation, number in self._events(
                table, ("globalTid", "correlationId"), ("nameId",)
            ):
                name = names.get(number)
                if name is None:
                    name = names[number] = re.sub(r"_v\d+$", "", plain(self._tables.string(number)))
                process, thread = _thread(global_id)
                yield ApiCall(name, thread, correlation or NO_CORRELATION, begin_ns, end_ns, process)

    def _ranges(self) -> Iterator[UserRange]:
        """Yield the ranges of the program, and collect those of operators."""
        numbers, names = ("globalTid",), ("textId", "text")
        for begin_ns, end_ns, global_id, number, text in self._events("NVTX_EVENTS", numbers, names, _IS_RANGE):
            name, *emitted = _EMITTED.split(str(text or self._tables.string(number)), maxsplit=1)
            thread, details = _thread(global_id), emitted[0] if emitted else ""
            self._has_shapes |= "sizes = " in details
            if _is_operator(name, bool(emitted), details.startswith("seq")):
                self._operators[thread].extend((begin_ns, end_ns))
                if name.startswith(AUTOGRAD):
                    self._backward[thread].extend((begin_ns, end_ns))
            elif name:
                yield UserRange(sys.intern(plain(name)), thread, begin_ns, end_ns)

    def _activities(self, calls: Sequence[ApiCall]) -> Iterator[Activity]:
        """Yield the work of all devices. Where the report has no processes, it is that of the only process of calls."""
        callers = {call.process for call in calls}
        lone = callers.pop() if len(callers) == 1 else 0
        devices = {
            (process, device): gpu
            for process, device, gpu in self._tables.values("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
        }
        kernels: dict[tuple[object, object], str] = {}
        for table, kind in ACTIVITY_TABLES:
            for begin_ns, end_ns, owner, device, stream, correlation, node, graph, n_bytes, *rest in self._events(
                table, (*_ACTIVITY_NUMBERS, *_COPY_NUMBERS), ("demangledName", "shortName")
            ):
                *copied, full_name, short_name = rest
                process = lone if owner is None else _thread(owner)[0]
                if kind == "kernel" and (full_name, short_name) not in kernels:
                    text = self._tables.string(full_name) or self._tables.string(short_name)
                    kernels[full_name, short_name] = plain(text) or kind
                yield Activity(
                    kind=kind,
                    name=kernels[full_name, short_name] if kind == "kernel" else _name(kind, *copied),
                    stream=stream or 0,
                    correlation=correlation or NO_CORRELATION,
                    begin_ns=begin_ns,
                    end_ns=end_ns,
                    bytes=n_bytes,
                    graph_node=node or None,
                    graph=graph or None,
                    device=devices.get((process & 0xFFFFFF, device), device or 0) or 0,
                    process=process,
                )

    def _device_name(self, activities: Sequence[Activity]) -> str:
        """Return the name of the device with most activities."""
        names = {
            device: plain(str(name or ""))
            for table, column in (("TARGET_INFO_CUDA_GPU", "deviceId"), ("TARGET_INFO_GPU", "id"))
            for device, name in self._tables.values(table, (column,), ("name",))
        }
        device, _ = max(Counter(a.device for a in activities).items(), key=lambda pair: pair[1], default=(0, 0))
        return names.get(device) or "GPU of unknown name"


@functools.lru_cache(maxsize=1 << 16)
def _is_operator(name: str, is_emitted: bool, has_sequence: bool) -> bool:
    """Return whether a range is that of an operator: `emit_nvtx` emitted it, with a sequence number or the name of a
    namespace, or it has the name of a library's function."""
    return has_sequence or bool(_OPERATOR.match(name) or (is_emitted and _NAMESPACED.match(name)))


def _thread(global_id: int | None) -> ThreadKey:
    """Return the process, with the bits of its machine, and the thread of a global id."""
    return (global_id or 0) >> 24, (global_id or 0) & 0xFFFFFF


def _name(kind: ActivityKind, direction: int, source: int, target: int) -> str:
    """Return the name that PyTorch's profiler gives to a copy, a memset or, of its own, a graph."""
    if kind != "copy":
        return kind.capitalize()
    name = copy_name(direction).replace("memcpy", "Memcpy")
    ends = [_MEMORIES[end] for end in (source, target) if end is not None and 0 <= end < len(_MEMORIES)]
    return f"{name} ({' -> '.join(ends)})" if len(ends) == 2 else name
