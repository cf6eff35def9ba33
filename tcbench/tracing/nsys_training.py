"""Reads reports of Nsight Systems on any program, exported to SQLite.

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

from tcbench.core.errors import TraceError
from tcbench.core.recording import Activity
from tcbench.core.text import plain
from tcbench.core.training_trace import ThreadKey, TrainingTrace, UserRange
from tcbench.tracing.kineto import AUTOGRAD, MOST_BYTES, disjoint_times
from tcbench.tracing.nsys_tables import ExportTables, open_export, thread_key

_IS_RANGE = '"eventType" IN (59, 60)'
_EMITTED = re.compile(r", (?=(?:seq|op_id|sizes) = )")
_OPERATOR = re.compile(r"(aten|autograd|c10d?|prims?|quantized|torch|torchvision)::|(nccl|cudnn|cublas)[A-Z]")
_NAMESPACED = re.compile(r"[a-z_]\w*::?\w|record_param_comms")


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
        self._operators: dict[ThreadKey, array[int]] = defaultdict(lambda: array("q"))
        self._backward: dict[ThreadKey, array[int]] = defaultdict(lambda: array("q"))
        self._has_shapes = False

    def trace(self) -> TrainingTrace:
        """Return the trace of all tables."""
        calls = self._tables.calls()
        ranges = sorted(self._ranges(), key=lambda user_range: (user_range.begin_ns, -user_range.end_ns))
        activities = self._tables.activities(calls, short_names=False)
        return TrainingTrace(
            source="nsys",
            device_name=self._device_name(activities),
            begin_ns=self._tables.begin_ns,
            end_ns=self._tables.end_ns,
            activities=tuple(activities),
            calls=tuple(calls),
            ranges=tuple(ranges),
            operators={thread: disjoint_times(times_ns) for thread, times_ns in self._operators.items()},
            backward={thread: disjoint_times(times_ns) for thread, times_ns in self._backward.items()},
            overheads=("shapes",) if self._has_shapes else (),
            shows_accelerator=True,  # without a table of a GPU nothing is known about it
            invalid_events=self._tables.invalid_events,
        )

    def _ranges(self) -> Iterator[UserRange]:
        """Yield the ranges of the program, and collect those of operators."""
        numbers, names = ("globalTid",), ("textId", "text")
        for begin_ns, end_ns, global_id, number, text in self._tables.events("NVTX_EVENTS", numbers, names, _IS_RANGE):
            name, *emitted = _EMITTED.split(self._tables.text(number, text), maxsplit=1)
            thread, details = thread_key(global_id), emitted[0] if emitted else ""
            self._has_shapes |= "sizes = " in details
            if _is_operator(name, bool(emitted), details.startswith("seq")):
                self._operators[thread].extend((begin_ns, end_ns))
                if name.startswith(AUTOGRAD):
                    self._backward[thread].extend((begin_ns, end_ns))
            elif name:
                yield UserRange(sys.intern(plain(name)), thread, begin_ns, end_ns)

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
