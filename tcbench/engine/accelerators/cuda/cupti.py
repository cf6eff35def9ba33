"""CUPTI: what the GPU did and which calls caused it, recorded in this process, with no profiler installed.

Uses the activity API through `cupti-python`, which is imported when recording begins. CUPTI hands over full buffers in
threads of its own, which take the interpreter's lock to do so: the buffers are large, so that a profiled pass of a few
steps fits into one and nothing is handed over until the pass is done. Source: CUPTI User's Guide, "CUPTI Activity API",
and CUPTI Python's API reference."""

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
"""A kernel's record takes about 200 bytes and a call's 40: a thousand kernels a step, some thirty steps. No larger,
since CUPTI zeroes it while the thread whose call it records waits."""

_KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "DRIVER")
"""CONCURRENT_KERNEL, unlike KERNEL, leaves concurrent kernels concurrent. Nodes of a captured graph are kernels here:
GRAPH_TRACE, which would make one record of a whole graph, stays off."""

_FORCED = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: buffers that are not full are handed over too."""


_CLOCK_TRIES = 9
_Recorded = TypeVar("_Recorded", Activity, ApiCall)


def import_cupti() -> Any:
    """The bindings. Raises TraceError where they are not installed."""
    try:
        from cupti import cupti  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise TraceError(f"CUPTI cannot be loaded ({error}): {packages.SYNC}, or --tool ranges") from None
    return cupti


class CuptiActivities:
    """Records once. `activities` and `calls` have what was recorded, in nanoseconds of CLOCK_MONOTONIC. It is made
    before a graph is captured: CUPTI that comes later may lose what the graph does, or break its replay (PyTorch's
    `torch.profiler._utils._init_for_cuda_graphs`, pytorch issue 75504). It stays attached."""

    def __init__(self, cupti: Any = None, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """Raises TraceError where CUPTI cannot record: it refuses a driver before CUDA 12.4."""
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
            int(kinds.RUNTIME): functools.partial(self._call, _call_names(self._cupti, "runtime_api_trace_cbid")),
            int(kinds.DRIVER): functools.partial(self._call, _call_names(self._cupti, "driver_api_trace_cbid")),
        }
        with _refusals(), contextlib.ExitStack() as enabled:
            cupti = self._cupti
            # The system's ids of threads, as threading.get_native_id() has them. It opens libcupti.
            cupti.set_thread_id_type(cupti.ActivityThreadIdType.SYSTEM)
            _one_for_all_threads(cupti)
            cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._handed_over)
            _enable(cupti, enabled)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While held, CUPTI records. The device must be done at its end. Raises TraceError if a second tool records."""
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
        """One for each correlation: the runtime's call where the driver's below it shares its number."""
        by_correlation: dict[int, ApiCall] = {}
        for call in self._calls:
            there = by_correlation.get(call.correlation)
            if there is None or call.begin_ns < there.begin_ns:
                by_correlation[call.correlation] = call
        return self._in_order(by_correlation.values())

    def _in_order(self, recorded: Iterable[_Recorded]) -> tuple[_Recorded, ...]:
        """By their begin, in nanoseconds of CLOCK_MONOTONIC."""
        offset_ns = self._offset_ns
        return tuple(
            msgspec.structs.replace(span, begin_ns=span.begin_ns + offset_ns, end_ns=span.end_ns + offset_ns)
            for span in sorted(recorded, key=lambda span: span.begin_ns)
        )

    def _clock_offset_ns(self) -> int:
        """Nanoseconds by which CLOCK_MONOTONIC is ahead of CUPTI's clock, by the closest of several readings."""
        readings = []
        for _ in range(_CLOCK_TRIES):
            before, there, after = self._now_ns(), self._cupti.get_timestamp(), self._now_ns()
            readings.append((after - before, (before + after) // 2 - there))
        offset_ns: int = min(readings)[1]
        return offset_ns

    def _handed_over(self, records: Iterable[Any]) -> None:
        """CUPTI's records are valid only here. An error must not reach CUPTI's thread."""
        for record in records:
            try:
                read = self._readers.get(int(record.kind))
                if read is not None:
                    read(record)
            except Exception:
                self.dropped += 1
                _LOG.debug("a record of CUPTI's cannot be read", exc_info=True)

    def _add(self, kind: ActivityKind, name: str, record: Any) -> None:
        begin_ns, end_ns = int(record.start), int(record.end)
        if not begin_ns or not end_ns:  # CUPTI says so of what it could not time
            self.dropped += 1
            return
        stream, correlation = int(record.stream_id), int(record.correlation_id)
        n_bytes = int(record.bytes) if kind != "kernel" else None
        in_graph = [int(getattr(record, which, 0)) or None for which in ("graph_node_id", "graph_id")]
        self._activities.append(Activity(kind, name, stream, correlation, begin_ns, end_ns, n_bytes, *in_graph))

    def _call(self, names: dict[int, str], record: Any) -> None:
        number = int(record.cbid)
        name = names.get(number, f"call {number}")
        thread, correlation = int(record.thread_id), int(record.correlation_id)
        self._calls.append(ApiCall(name, thread, correlation, int(record.start), int(record.end)))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise TraceError(f"CUPTI cannot record ({error}): take --tool ranges") from error


def _enable(cupti: Any, enabled: contextlib.ExitStack) -> None:
    """Every kind, until the stack ends."""
    for name in _KINDS:
        kind = getattr(cupti.ActivityKind, name)
        try:
            cupti.activity_enable(kind)
        except NotImplementedError:
            # cupti-python 12.8 has no RUNTIME; the driver's call below it has the same correlation.
            _LOG.info("cupti-python does not record %s", name)
        else:
            enabled.callback(cupti.activity_disable, kind)


def _one_for_all_threads(cupti: Any) -> None:
    """One buffer, not one per thread, which is the default from CUDA 13 on: each of DALI's threads would ask for one in
    the midst of a step, and for the interpreter's lock to do so, which cuDNN's frontend holds while it launches."""
    attribute = getattr(cupti.ActivityAttribute, "ATTR_PER_THREAD_BUFFER", None)
    if attribute is None:
        return
    size, off = ctypes.c_size_t(1), ctypes.c_uint8(0)
    try:
        cupti.activity_set_attribute(attribute, ctypes.addressof(size), ctypes.addressof(off))
    except Exception as error:
        _LOG.info("CUPTI keeps a buffer for each thread: %s", error)


def _call_names(cupti: Any, enumeration: str) -> dict[int, str]:
    """Names of calls by their number in CUPTI's records, without what is appended: cudaLaunchKernel_ptsz_v7000."""
    members = getattr(getattr(cupti, enumeration, None), "__members__", {})
    return {int(number): re.sub(r"(_ptsz|_ptds)?_v\d+$", "", name) for name, number in members.items()}
