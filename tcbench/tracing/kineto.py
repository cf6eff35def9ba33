"""Reads traces of PyTorch's profiler (Kineto), with GPU activities of NVIDIA (CUPTI) or AMD (roctracer, rocprofiler).

The format is Chrome's, with these categories: `kernel`, `gpu_memcpy`, `gpu_memset` on devices; `cuda_runtime`,
`cuda_driver` for API calls, of HIP too; `cpu_op` for operators; `user_annotation` for ranges; `python_function` for
stacks. `args.correlation` links an activity to the call that launched it. Times are microseconds, in fractions.
"""

from __future__ import annotations

import bisect
import re
import sys
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from tcbench.core.errors import TraceError
from tcbench.core.recording import Activity, ActivityKind, ApiCall
from tcbench.core.text import plain
from tcbench.core.training_trace import NO_CORRELATION, Collective, Overhead, ThreadKey, TrainingTrace, UserRange
from tcbench.tracing import json_stream

MOST_BYTES = 2 << 30
"""The default limit of a trace's size when unpacked."""

_ACTIVITIES: Mapping[str, ActivityKind] = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
_CALLS = ("cuda_runtime", "cuda_driver")
_HOST_CATEGORIES = ("cpu_op", "user_annotation", "python_function", *_CALLS)
_ACCELERATOR_CATEGORY = re.compile(r"_(runtime|driver)$|^(mtia|hpu|gpu)_|^cuda_")
_ACCELERATOR_NAME = re.compile(r"cudnn|miopen|cuda|record_stream|^(nccl|rccl|xccl|hccl):")
"""Operators and ranges that only a program with an accelerator has."""
AUTOGRAD = "autograd::engine::evaluate_function"
_COLLECTIVE = "record_param_comms"
_CHECKPOINT = "CheckpointFunctionBackward"
"""The operator in which torch.utils.checkpoint with use_reentrant=True first recomputes, then differentiates."""
_RECOMPUTE = re.compile(r"torch/utils/checkpoint\.py\(\d+\): recompute_fn")
"""The Python function in which torch.utils.checkpoint with use_reentrant=False recomputes."""
_OVERHEADS: Mapping[str, Overhead] = {
    "with_stack": "stacks",
    "with_modules": "modules",
    "record_shapes": "shapes",
    "profile_memory": "memory",
}
_DTYPE_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
}
MOST_NS = 1 << 62


def is_foreign(path: Path) -> bool:
    """Return whether a file is a Chrome trace that tcbench did not write: its first complete event lacks the fields of
    a span. A file that cannot be read is not foreign."""
    try:
        for key, event in json_stream.members(path, 1 << 24):
            if key == json_stream.EVENTS and isinstance(event, dict) and event.get("ph") == "X":
                arguments = event.get("args")
                return not (isinstance(arguments, dict) and "lane" in arguments)
    except TraceError:
        return False
    return False


def read(path: Path, most_bytes: int = MOST_BYTES) -> TrainingTrace:
    """Return the trace in a file of at most `most_bytes` when unpacked. Raises TraceError."""
    builder = _Builder()
    index = -1
    for key, member in json_stream.members(path, most_bytes):
        if key != json_stream.EVENTS:
            builder.add_header(key, member)
            continue
        index += 1
        try:
            builder.add_event(member)
        except (KeyError, TypeError, ValueError, AttributeError, InvalidOperation, OverflowError) as error:
            is_missing = isinstance(error, KeyError)
            reason = f"{'no' if is_missing else 'a wrong'} value: {plain(str(error))[:80]}"
            raise TraceError(f"{path}: event {index} of the Chrome trace is damaged ({reason})") from None
    if not builder.is_kineto:
        raise TraceError(
            f"{path}: a Chrome trace without an event of PyTorch's profiler; expected its export_chrome_trace, "
            "or a trace of `tcbench profile`"
        )
    return builder.trace()


class _Builder:
    """Collects the events of one file."""

    def __init__(self) -> None:
        self.is_kineto = False
        self._activities: list[Activity] = []
        self._calls: list[ApiCall] = []
        self._ranges: list[UserRange] = []
        self._collectives: list[Collective] = []
        self._process_groups: dict[tuple[int, int], str] = {}
        self._operators: dict[ThreadKey, array[int]] = defaultdict(lambda: array("q"))
        self._autograd: dict[ThreadKey, array[int]] = defaultdict(lambda: array("q"))
        self._checkpoints: list[UserRange] = []
        self._recomputed: dict[ThreadKey, array[int]] = defaultdict(lambda: array("q"))
        self._overheads: dict[Overhead, bool] = {}
        self._shows_accelerator = False
        self._device_names: dict[int, str] = {}
        self._ranks = 1
        self._rank: int | None = None
        self._begin_ns, self._end_ns, self._invalid_events = MOST_NS, -MOST_NS, 0

    def add_header(self, key: str, member: Any) -> None:
        """Add a member of the top-level object besides the events."""
        if key == "deviceProperties" and isinstance(member, list):
            devices = [device for device in member if isinstance(device, dict)]
            self._device_names = {device.get("id", 0): plain(str(device.get("name", ""))) for device in devices}
        elif key == "distributedInfo" and isinstance(member, dict):
            rank, ranks = member.get("rank"), member.get("world_size")
            self._rank = rank if isinstance(rank, int) else None
            self._ranks = ranks if isinstance(ranks, int) and ranks > 0 else 1
        elif key in _OVERHEADS and member:
            self._overheads[_OVERHEADS[key]] = True

    def add_event(self, event: dict[str, Any]) -> None:
        """Add an event. Raises an error if a field that the event needs is missing or of another type."""
        category = event.get("cat")
        if event.get("ph") != "X" or not isinstance(category, str):
            if event.get("name") == "[memory]":
                self._overheads["memory"] = True
            return
        kind = _ACTIVITIES.get(category)
        self._shows_accelerator |= kind is not None or _ACCELERATOR_CATEGORY.search(category) is not None
        if kind is None and category not in _HOST_CATEGORIES:
            return
        self.is_kineto = True
        begin_ns = _nanoseconds(event["ts"])
        end_ns = begin_ns + _nanoseconds(event.get("dur", 0))
        if end_ns < begin_ns:
            self._invalid_events += 1
            return
        self._begin_ns, self._end_ns = min(self._begin_ns, begin_ns), max(self._end_ns, end_ns)
        if category == "python_function":
            self._overheads["stacks"] = True
            if _RECOMPUTE.search(str(event["name"])):
                self._recomputed[_identifier(event["pid"]), _identifier(event["tid"])].extend((begin_ns, end_ns))
            return
        name, arguments = sys.intern(plain(str(event["name"]))), event.get("args") or {}
        if kind is not None:
            self._add_activity(kind, name, event, arguments, begin_ns, end_ns)
            return
        thread = (_identifier(event["pid"]), _identifier(event["tid"]))
        self._shows_accelerator |= _ACCELERATOR_NAME.search(name) is not None
        if category in _CALLS:
            correlation = int(arguments.get("correlation", NO_CORRELATION))
            self._calls.append(ApiCall(name, thread[1], correlation, begin_ns, end_ns, thread[0]))
        elif category == "user_annotation":
            self._ranges.append(UserRange(name, thread, begin_ns, end_ns))
        else:
            self._operators[thread].extend((begin_ns, end_ns))
            self._add_operator(name, arguments, thread, begin_ns, end_ns)

    def _add_activity(
        self,
        kind: ActivityKind,
        name: str,
        event: Mapping[str, Any],
        arguments: Mapping[str, Any],
        begin_ns: int,
        end_ns: int,
    ) -> None:
        """Add work of a GPU. Its process is found when all calls are known."""
        device = int(arguments.get("device", event["pid"]))
        stream = int(arguments.get("stream", event["tid"]))
        correlation = int(arguments.get("correlation", NO_CORRELATION))
        group = arguments.get("Process Group Name")
        if group is not None:
            self._process_groups[device, correlation] = sys.intern(f"{group} {arguments.get('Process Group Ranks')}")
        n_bytes = arguments.get("bytes")
        n_bytes = n_bytes if isinstance(n_bytes, int) else None
        self._activities.append(Activity(kind, name, stream, correlation, begin_ns, end_ns, n_bytes, device=device))

    def _add_operator(self, name: str, arguments: Mapping[str, Any], thread: ThreadKey, *times_ns: int) -> None:
        """Note what an operator tells besides its time."""
        if name.startswith(AUTOGRAD):
            self._autograd[thread].extend(times_ns)
        elif name == _CHECKPOINT:
            self._checkpoints.append(UserRange(name, thread, *times_ns))
        if "Input Dims" in arguments:
            self._overheads["shapes"] = True
        if name == _COLLECTIVE:
            elements, ranks = arguments.get("In msg nelems"), arguments.get("Group size")
            size = _DTYPE_BYTES.get(str(arguments.get("dtype")))
            if isinstance(elements, int) and isinstance(ranks, int) and size and elements > 0 and ranks > 1:
                collective = plain(str(arguments.get("Collective name", "")))
                self._collectives.append(Collective(collective, elements * size, ranks, thread, *times_ns))

    def trace(self) -> TrainingTrace:
        """Return the trace of all events so far."""
        activities = _with_processes(self._activities, self._calls)
        return TrainingTrace(
            source="pytorch",
            device_name=next(filter(None, self._device_names.values()), "GPU of unknown name"),
            device_names={number: name for number, name in self._device_names.items() if name},
            begin_ns=self._begin_ns,
            end_ns=self._end_ns,
            activities=tuple(sorted(activities, key=lambda activity: (activity.begin_ns, activity.end_ns))),
            calls=tuple(sorted(self._calls, key=lambda call: (call.begin_ns, -call.end_ns))),
            ranges=tuple(sorted(self._ranges, key=lambda user_range: (user_range.begin_ns, -user_range.end_ns))),
            operators={thread: disjoint_times(times_ns) for thread, times_ns in self._operators.items()},
            backward={thread: disjoint_times(times_ns) for thread, times_ns in self._autograd.items()},
            recomputation=self._recomputation(),
            collectives=tuple(self._collectives),
            process_groups=self._process_groups,
            overheads=tuple(overhead for overhead in _OVERHEADS.values() if overhead in self._overheads),
            rank=self._rank,
            ranks=self._ranks,
            shows_accelerator=self._shows_accelerator or any(self._device_names.values()),
            invalid_events=self._invalid_events,
        )

    def _recomputation(self) -> dict[ThreadKey, tuple[tuple[int, int], ...]]:
        """Return the time on each thread in which activations are recomputed."""
        begins = {thread: sorted(times_ns[::2]) for thread, times_ns in self._autograd.items()}
        for checkpoint in self._checkpoints:
            following = begins.get(checkpoint.thread, [])
            place = bisect.bisect_right(following, checkpoint.begin_ns)
            end_ns = min(checkpoint.end_ns, *following[place : place + 1], MOST_NS)
            self._recomputed[checkpoint.thread].extend((checkpoint.begin_ns, end_ns))
        return {thread: disjoint_times(times_ns) for thread, times_ns in self._recomputed.items()}


def _with_processes(activities: list[Activity], calls: Iterable[ApiCall]) -> list[Activity]:
    """Return the activities with the process of the call that launched each.

    Kineto does not write it. Where several processes have a call of an activity's correlation, the call is taken that
    began last before the activity, or first after it if the clocks of host and device differ."""
    correlated: dict[int, list[ApiCall]] = defaultdict(list)
    for call in calls:
        if call.correlation != NO_CORRELATION:
            correlated[call.correlation].append(call)

    for candidates in correlated.values():
        candidates.sort(key=lambda call: call.begin_ns)

    def launching_process(activity: Activity) -> int:
        candidates = correlated.get(activity.correlation, ())
        place = bisect.bisect_right(candidates, activity.begin_ns, key=lambda call: call.begin_ns)
        return candidates[max(0, place - 1)].process if candidates else 0

    return [msgspec.structs.replace(activity, process=launching_process(activity)) for activity in activities]


def disjoint_times(times_ns: array[int]) -> tuple[tuple[int, int], ...]:
    """Return the intervals whose begins and ends alternate in `times_ns`, sorted, without those inside of another one.
    Intervals that only touch stay apart, so that their number is that of the outermost operators."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(zip(times_ns[::2], times_ns[1::2], strict=True)):
        if merged and begin < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif begin < end:
            merged.append((begin, end))
    return tuple(merged)


def _identifier(identifier: Any) -> int:
    """Return the id of a process or thread. Words, which Kineto writes for a few rows, become a number of their own."""
    return identifier if isinstance(identifier, int) else zlib.crc32(str(identifier).encode())


def _nanoseconds(microseconds: int | str) -> int:
    """Return a time in whole nanoseconds. Raises ValueError if it is not a finite number, or beyond 146 years."""
    if isinstance(microseconds, bool):
        raise ValueError("a time that is no number")
    if isinstance(microseconds, int):
        time_ns = microseconds * 1000
    else:
        units, _, fraction = microseconds.partition(".")
        if units.isdecimal() and fraction.isdecimal() and len(units) < 20:
            time_ns = int(units) * 1000 + int((fraction + "000")[:3])
        else:
            number = Decimal(microseconds)
            if not number.is_finite() or number.adjusted() > 18:
                raise ValueError(f"a time of {microseconds[:20]}")
            time_ns = int(number * 1000)
    if abs(time_ns) > MOST_NS:
        raise ValueError(f"a time of {microseconds}")
    return time_ns
