"""Recording with CUPTI: GPU activities and the API calls that caused them, in this process, without a profiler.

Uses the activity API through `cupti-python`, which is imported when recording begins. CUPTI delivers full buffers from
its own threads, which take the GIL to do so. Buffers are therefore large enough for a profiled pass of a few steps, and
are delivered after the pass. Sources: CUPTI User's Guide, "CUPTI Activity API"; CUPTI Python's API reference."""

import contextlib
import ctypes
import functools
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from tcbench.core.errors import TraceError
from tcbench.core.recording import Activity, ActivityKind, ApiCall, copy_name
from tcbench.engine.accelerators.cuda import packages

_LOG = logging.getLogger(__name__)

BUFFER_BYTES = 16 * 2**20
"""Room for about thirty steps of a thousand kernels: a kernel's record takes about 200 bytes and a call's 40. A larger
buffer would disturb more: CUPTI zeroes it while the thread that made the recorded call waits."""

_KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "DRIVER")
"""The recorded kinds of activity. CONCURRENT_KERNEL, unlike KERNEL, does not serialise kernels. GRAPH_TRACE stays off:
it would replace the kernels of a captured graph by a single record."""

_FORCED = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: also deliver buffers that are not full."""

_CLOCK_TRIES = 9
_Recorded = TypeVar("_Recorded", Activity, ApiCall)


def import_cupti() -> Any:
    """Import and return CUPTI's Python bindings. Raises TraceError if they are not installed."""
    try:
        from cupti import cupti  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise TraceError(f"CUPTI cannot be loaded ({error}): {packages.SYNC}, or use --tool ranges instead") from None
    return cupti


class CuptiActivities:
    """A recorder of GPU activities and API calls that records one pass. Times are nanoseconds of CLOCK_MONOTONIC.

    Create it before a CUDA graph is captured: CUPTI that attaches later may miss the graph's kernels or break its
    replay (PyTorch's `torch.profiler._utils._init_for_cuda_graphs`, pytorch issue 75504). CUPTI stays attached."""

    def __init__(self, cupti: Any = None, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """Attach CUPTI. Raises TraceError if CUPTI cannot record, for example with a driver before CUDA 12.4."""
        self._cupti = cupti or import_cupti()
        self._now_ns = now_ns
        self._activities: list[Activity] = []
        self._calls: list[ApiCall] = []
        self._offset_ns = 0
        self.dropped = 0
        kinds = self._cupti.ActivityKind
        self._readers: dict[int, Callable[[Any], None]] = {
            int(kinds.CONCURRENT_KERNEL): lambda record: self._add("kernel", str(record.name), record),
            int(kinds.MEMCPY): lambda record: self._add("copy", copy_name(int(record.copy_kind)), record),
            int(kinds.MEMSET): lambda record: self._add("memset", "memset", record),
            int(kinds.RUNTIME): functools.partial(self._add_call, _call_names(self._cupti, "runtime_api_trace_cbid")),
            int(kinds.DRIVER): functools.partial(self._add_call, _call_names(self._cupti, "driver_api_trace_cbid")),
        }
        with _refusals(), contextlib.ExitStack() as enabled:
            cupti = self._cupti
            # Opens libcupti. The system's thread ids are those of threading.get_native_id().
            cupti.set_thread_id_type(cupti.ActivityThreadIdType.SYSTEM)
            _share_buffer(cupti)
            cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._read_records)
            _enable(cupti, enabled)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the context is open. The device must be idle when it closes. Raises TraceError if another tool
        records."""
        with _refusals(), contextlib.ExitStack() as enabling:
            _enable(self._cupti, enabling)
            self._offset_ns = self._clock_offset_ns()
            enabled = enabling.pop_all()
        try:
            with enabled:
                yield
        finally:
            self._cupti.activity_flush_all(_FORCED)

    @property
    def activities(self) -> tuple[Activity, ...]:
        return self._in_order(self._activities)

    @property
    def calls(self) -> tuple[ApiCall, ...]:
        """The recorded calls, one per correlation id: a runtime call stands for the driver call that it makes."""
        by_correlation: dict[int, ApiCall] = {}
        for call in self._calls:
            known_call = by_correlation.get(call.correlation)
            if known_call is None or call.begin_ns < known_call.begin_ns:
                by_correlation[call.correlation] = call
        return self._in_order(by_correlation.values())

    def _in_order(self, recorded: Iterable[_Recorded]) -> tuple[_Recorded, ...]:
        """Return the spans sorted by begin, with times converted to CLOCK_MONOTONIC."""
        offset_ns = self._offset_ns
        return tuple(
            msgspec.structs.replace(span, begin_ns=span.begin_ns + offset_ns, end_ns=span.end_ns + offset_ns)
            for span in sorted(recorded, key=lambda span: span.begin_ns)
        )

    def _clock_offset_ns(self) -> int:
        """Return CLOCK_MONOTONIC minus CUPTI's clock, from the reading that took least time."""
        readings = []
        for _ in range(_CLOCK_TRIES):
            before, cupti_ns, after = self._now_ns(), self._cupti.get_timestamp(), self._now_ns()
            readings.append((after - before, (before + after) // 2 - cupti_ns))
        offset_ns: int = min(readings)[1]
        return offset_ns

    def _read_records(self, records: Iterable[Any]) -> None:
        """Read a delivered buffer, whose records are valid only during this call. Never raises into CUPTI's thread."""
        for record in records:
            try:
                read = self._readers.get(int(record.kind))
                if read is not None:
                    read(record)
            except Exception:
                self.dropped += 1
                _LOG.debug("a record of CUPTI's cannot be read", exc_info=True)

    def _add(self, kind: ActivityKind, name: str, record: Any) -> None:
        """Store an activity of the GPU. Activities without times count as dropped."""
        begin_ns, end_ns = int(record.start), int(record.end)
        if not begin_ns or not end_ns:  # CUPTI could not time it
            self.dropped += 1
            return
        stream, correlation = int(record.stream_id), int(record.correlation_id)
        n_bytes = int(record.bytes) if kind != "kernel" else None
        node, graph = (int(getattr(record, field, 0)) or None for field in ("graph_node_id", "graph_id"))
        self._activities.append(Activity(kind, name, stream, correlation, begin_ns, end_ns, n_bytes, node, graph))

    def _add_call(self, names: dict[int, str], record: Any) -> None:
        """Store a call of the CUDA API."""
        number = int(record.cbid)
        name = names.get(number, f"call {number}")
        thread, correlation = int(record.thread_id), int(record.correlation_id)
        self._calls.append(ApiCall(name, thread, correlation, int(record.start), int(record.end)))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn any error of CUPTI into a TraceError."""
    try:
        yield
    except Exception as error:
        raise TraceError(f"CUPTI cannot record ({error}): use --tool ranges instead") from error


def _enable(cupti: Any, enabled: contextlib.ExitStack) -> None:
    """Enable every kind of activity; closing the stack disables them."""
    for name in _KINDS:
        kind = getattr(cupti.ActivityKind, name)
        try:
            cupti.activity_enable(kind)
        except NotImplementedError:
            # cupti-python 12.8 has no RUNTIME; the driver's call below it has the same correlation.
            _LOG.info("cupti-python does not record %s", name)
        else:
            enabled.callback(cupti.activity_disable, kind)


def _share_buffer(cupti: Any) -> None:
    """Make all threads share one buffer. From CUDA 13 on, the default is one buffer per thread.

    Otherwise each of DALI's threads would request a buffer in the middle of a step. The request needs the GIL, which
    cuDNN's frontend holds during a launch."""
    attribute = getattr(cupti.ActivityAttribute, "ATTR_PER_THREAD_BUFFER", None)
    if attribute is None:
        return
    size, off = ctypes.c_size_t(1), ctypes.c_uint8(0)
    try:
        cupti.activity_set_attribute(attribute, ctypes.addressof(size), ctypes.addressof(off))
    except Exception as error:
        _LOG.info("CUPTI keeps a buffer for each thread: %s", error)


def _call_names(cupti: Any, enumeration: str) -> dict[int, str]:
    """Return the names of API calls by callback id, without suffixes such as in `cudaLaunchKernel_ptsz_v7000`."""
    members = getattr(getattr(cupti, enumeration, None), "__members__", {})
    return {int(number): re.sub(r"(_ptsz|_ptds)?_v\d+$", "", name) for name, number in members.items()}
