import factories
import pytest
from show.charts.charts import words

from tcbench import tracing
from tcbench.analysis.bottleneck import explain_records, explain_timeline
from tcbench.commands.timeline.chart import timeline_chart
from tcbench.core.errors import StoreError, TraceError
from tcbench.core.record import MeasureSettings, PhaseTimes
from tcbench.show.bottlenecks import limit_sentence
from tcbench.tracing.attribution import from_record


def test_records_become_their_phase_times_laid_end_to_end(tmp_path):
    ok, failed = factories.make_record(), factories.make_record(status="failed", batch_size=8)
    (timeline,) = tracing.read(factories.write(tmp_path / "r.jsonl", failed, ok))
    measured = ok.measurement
    assert (timeline.label, timeline.source) == (ok.cell.label, "ranges")
    first = measured.warmup_steps + measured.timed_steps
    assert [s.step for s in timeline.steps] == list(range(first, first + 5))
    for phase in measured.phases:
        spans = [s for s in timeline.spans_in("host", "phase") if s.name == phase.name]
        assert [s.duration_s for s in spans] == pytest.approx(phase.host_s, abs=2e-9)
    assert timeline.end_s == pytest.approx(sum(sum(phase.host_s) for phase in measured.phases), abs=1e-6)


def test_of_timed_phases_a_timeline_says_what_the_record_says():
    phases = tuple(PhaseTimes(name=name, host_s=(s,) * 10) for name, s in {"io": 0.01, "forward": 0.19}.items())
    record = factories.make_record(measurement=factories.make_measurement([0.2] * 12, phases=phases))
    timeline = from_record(record)
    assert explain_timeline(timeline) == explain_records([record])
    assert limit_sentence(explain_timeline(timeline)).endswith("; input is prepared in parallel")
    page = words(timeline_chart([timeline] * 13))
    assert any("Phases of a record are those of its timed steps" in text for text in page)
    assert not any("profiler" in text for text in page)
    assert any("1 more are not drawn (choose with --config or --bs, or name fewer files)" in text for text in page)


def test_of_a_record_on_a_gpu_the_gpus_phases_stand_beside_the_hosts_and_lag_behind_them():
    """Five steps of two profiled passes, the first of two steps: the host launches for 0.3 s each."""
    host_s = {"forward": 0.1, "update": 0.2}
    phases = tuple(PhaseTimes(name=name, host_s=(s,) * 5, device_s=(0.25,) * 5) for name, s in host_s.items())
    cell = factories.make_cell("fp16", 8, device="cuda:0", measure=MeasureSettings(profiled_steps=2))
    measurement = factories.make_measurement([0.5] * 12, phases=phases, busy_s=0.45, prefetch_depth=0)
    record = factories.make_record(cell=cell, measurement=measurement)
    timeline = from_record(record)
    begins = [span.begin_s for span in timeline.spans_in("gpu")]
    assert begins == pytest.approx([0.25 * place for place in range(10)])
    # The second pass begins when the GPU has done the first.
    assert [step.begin_s for step in timeline.steps] == pytest.approx([0.0, 0.3, 1.0, 1.3, 1.6])
    assert explain_timeline(timeline) == explain_records([record])
    needs = "host needs 300 ms per step, GPU 450 ms"
    assert limit_sentence(explain_timeline(timeline)) == f"gpu-bound: {needs}; a step takes 500 ms"
    page = words(timeline_chart([timeline], steps=2))
    assert {"CPU", "GPU", "16.0 images/s"} <= set(page)
    assert any("GPU phases include waits for the CPU" in text for text in page)


def test_records_without_phase_times_say_so(tmp_path):
    path = factories.write(tmp_path / "r.jsonl", factories.make_record(status="oom"))
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
        ("x.sqlite", b"nonsense", "not a complete SQLite export"),
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
