import factories
import pytest

from tcbench import tracing
from tcbench.core import record as records
from tcbench.core.errors import StoreError, TraceError
from tcbench.tracing.attribution import from_record


def test_records_become_their_phase_times_laid_end_to_end(tmp_path):
    path = tmp_path / "r.jsonl"
    ok, failed = factories.make_record(), factories.make_record(status="failed", batch_size=8)
    path.write_bytes(records.encode(failed) + b"\n" + records.encode(ok) + b"\n")
    (timeline,) = tracing.read(path)
    measured = ok.measurement
    assert (timeline.label, timeline.source) == (ok.cell.label, "ranges")
    first = measured.warmup_steps + measured.timed_steps
    assert [s.step for s in timeline.steps] == list(range(first, first + 5))
    for phase in measured.phases:
        spans = [s for s in timeline.of("host", "phase") if s.name == phase.name]
        assert [s.duration_s for s in spans] == pytest.approx(phase.host_s, abs=2e-9)
    assert timeline.end_s == pytest.approx(sum(sum(phase.host_s) for phase in measured.phases), abs=1e-6)


def test_records_without_phase_times_say_so(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(records.encode(factories.make_record(status="oom")) + b"\n")
    with pytest.raises(TraceError, match="none of its 1 records has phase times"):
        tracing.read(path)
    unprofiled = factories.make_measurement(phases=())
    assert from_record(factories.make_record(measurement=unprofiled)) is None


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("none.sqlite", None, "no such file"),
        ("empty.sqlite", b"", "the file is empty"),
        ("x.csv", b"a,b", "expected .json.gz"),
        ("x.jsonl", b"nonsense\n", "not JSON"),
        ("x.sqlite", b"nonsense", "not a whole SQLite export"),
    ],
)
def test_what_cannot_be_read_gets_one_clear_line(tmp_path, name, data, message):
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises((TraceError, StoreError), match=message) as error:
        tracing.read(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_report_without_nsys_names_what_to_do(tmp_path, monkeypatch):
    path = tmp_path / "r.nsys-rep"
    path.write_bytes(b"x")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TraceError, match="needs nsys on PATH"):
        tracing.read(path)
