"""CUPTI on a stand-in for its bindings, whose names and fields are those of cupti-python 12.8 and 13."""

import ctypes
import enum
from types import SimpleNamespace as Record

import pytest

from tcbench.core.errors import TraceError
from tcbench.core.recording import Activity
from tcbench.engine.accelerators.cuda import cupti

Kind = enum.IntEnum("Kind", {"MEMCPY": 1, "MEMSET": 2, "DRIVER": 4, "RUNTIME": 5, "CONCURRENT_KERNEL": 10})


class StandIn:
    """Delivers what was put into `records` when it is flushed. Its clock is a second ahead of ours."""

    ActivityKind = Kind
    runtime_api_trace_cbid = enum.IntEnum("Runtime", {"INVALID": 0, "cudaLaunchKernel_ptsz_v7000": 211})
    driver_api_trace_cbid = enum.IntEnum("Driver", {"cuLaunchKernel": 307})
    ActivityThreadIdType = Record(SYSTEM=1)
    ActivityAttribute = Record(ATTR_PER_THREAD_BUFFER=9)

    def __init__(self) -> None:
        self.enabled: list[Kind] = []
        self.attached: list[Kind] = []
        self.events: list[str] = []
        self.records: list[Record] = []

    def set_thread_id_type(self, kind: int) -> None:
        self.events.append(f"thread ids {kind}")

    def activity_set_attribute(self, attribute: int, size: int, value: int) -> None:
        n_bytes = ctypes.c_size_t.from_address(size).value
        self.events.append(f"attribute {attribute}: {ctypes.string_at(value, n_bytes)!r}")

    def activity_register_callbacks(self, requested, completed) -> None:
        self.events.append("callbacks")
        size, limit = requested()
        assert size >= 2**20 and limit == 0
        self.completed = completed

    def activity_enable(self, kind: Kind) -> None:
        self.enabled.append(kind)
        self.attached.append(kind)

    def activity_disable(self, kind: Kind) -> None:
        self.enabled.remove(kind)
        self.events.append("disabled")

    def activity_flush_all(self, flag: int) -> None:
        assert flag == 1
        self.events.append("flushed")
        self.completed(self.records)

    def get_timestamp(self) -> int:
        return 1_000_000_500


def kernel(start: int, end: int, correlation: int = 1, **more) -> Record:
    fields = {"name": "sgemm", "stream_id": 7, "correlation_id": correlation, "graph_node_id": 0, "graph_id": 0}
    return Record(kind=int(Kind.CONCURRENT_KERNEL), start=start, end=end, **(fields | more))


def recorded(*records: Record) -> cupti.CuptiActivities:
    standin = StandIn()
    standin.records = list(records)
    activities = cupti.CuptiActivities(standin, now_ns=lambda: 500)
    with activities.recording():
        assert Kind.CONCURRENT_KERNEL in standin.enabled
        assert "flushed" not in standin.events
    assert not standin.enabled
    assert standin.events[0] == "thread ids 1"
    assert standin.events[-1] == "flushed"
    return activities


S = 1_000_000_000


def test_what_the_gpu_did_is_told_in_our_clocks_time_and_order():
    activities = recorded(
        kernel(S + 2000, S + 3000, 2, graph_node_id=9, graph_id=4),
        Record(kind=1, copy_kind=1, start=S + 1000, end=S + 1500, stream_id=8, correlation_id=1, bytes=64),
        Record(kind=2, start=S + 5000, end=S + 5100, stream_id=8, correlation_id=3, bytes=32),
    )
    assert activities.activities == (
        Activity("copy", "memcpy HtoD", 8, 1, 1000, 1500, 64),
        Activity("kernel", "sgemm", 7, 2, 2000, 3000, None, 9, 4),
        Activity("memset", "memset", 8, 3, 5000, 5100, 32),
    )
    assert activities.dropped == 0


def test_what_has_no_times_or_cannot_be_read_is_counted_and_breaks_nothing():
    activities = recorded(kernel(0, 0), Record(kind=int(Kind.MEMCPY)), Record(kind=33), kernel(S + 1, S + 2))
    assert len(activities.activities) == 1
    assert activities.dropped == 2


def test_cupti_is_attached_when_the_recorder_is_made_since_no_graph_is_captured_before_that():
    standin = StandIn()
    cupti.CuptiActivities(standin)
    assert set(standin.attached) == set(Kind)
    assert not standin.enabled, "until it records"


def test_all_threads_share_one_buffer_which_cuda_13_has_to_be_told():
    """CUPTI's default in CUDA 13 is one buffer per thread; it must be changed before callbacks are registered."""
    standin = StandIn()
    cupti.CuptiActivities(standin)
    assert standin.events[:3] == ["thread ids 1", r"attribute 9: b'\x00'", "callbacks"]


def test_a_kind_that_the_bindings_do_not_have_is_left_out():
    """cupti-python 12.8, which the extras cuda12 and volta bring, has no RUNTIME; the driver's calls correlate too."""

    class Twelve(StandIn):
        def activity_enable(self, kind: Kind) -> None:
            if kind == Kind.RUNTIME:
                raise NotImplementedError("Activity Kind RUNTIME not supported")
            super().activity_enable(kind)

    standin = Twelve()
    call = Record(kind=int(Kind.DRIVER), cbid=307, start=S + 100, end=S + 110, correlation_id=1, thread_id=42)
    standin.records = [call, kernel(S + 200, S + 300)]
    activities = cupti.CuptiActivities(standin, now_ns=lambda: 500)
    with activities.recording():
        assert {Kind.DRIVER, Kind.CONCURRENT_KERNEL} <= set(standin.enabled)
    assert not standin.enabled
    assert [recorded.name for recorded in (*activities.calls, *activities.activities)] == ["cuLaunchKernel", "sgemm"]


@pytest.mark.plans
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_installed_bindings_have_every_kind_but_one():
    """Only what the bindings themselves do not have raises NotImplementedError: no GPU is asked for that."""
    bindings = cupti.import_cupti()
    refused = []
    for name in cupti._KINDS:
        try:
            bindings.activity_enable(getattr(bindings.ActivityKind, name))
        except NotImplementedError:
            refused.append(name)
        except Exception:  # no driver, or one that is too old
            continue
        else:
            bindings.activity_disable(getattr(bindings.ActivityKind, name))
    assert set(refused) <= {"RUNTIME"}


def test_a_step_that_fails_leaves_nothing_on():
    standin = StandIn()
    with pytest.raises(ValueError, match="a step"), cupti.CuptiActivities(standin).recording():
        raise ValueError("a step")
    assert not standin.enabled


def test_a_driver_that_cupti_refuses_is_one_clear_line(monkeypatch):
    """The bindings open libcupti at the first call: cupti._internal.utils.NotSupportedError, a RuntimeError."""

    class Old(StandIn):
        def set_thread_id_type(self, kind):
            raise RuntimeError("only CUDA 12.4 or later driver is supported")

        activity_flush_all = set_thread_id_type

    message = r"CUPTI cannot record \(only CUDA 12.4 or later driver is supported\): use --tool ranges instead"
    with pytest.raises(TraceError, match=message), cupti.CuptiActivities(Old()).recording():
        pass


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupti", None)
    with pytest.raises(TraceError, match="uv sync --extra cuda12"):
        cupti.CuptiActivities()
