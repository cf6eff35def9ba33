"""Reports of two of Nsight Systems' forms, made here with kernels in them; and a real one where nsys is installed."""

import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tcbench import tracing
from tcbench.core import store
from tcbench.core.errors import TraceError
from tcbench.core.recording import HostSpan, Recording
from tcbench.engine.accelerators.device import kind_of
from tcbench.tracing import nsys, nsys_tables

PID, MAIN, WORKER = 4321, 4321, 4400
DOMAIN, DALI_DOMAIN = 1, 2
TITLE = {"label": "fp16+dali, batch size 64", "device": "cuda:0", "device_name": "Tesla V100", "batch_size": 64}


def global_id(thread: int = 0, process: int = PID) -> int:
    """24 bits of process above 24 of thread, below the machine's."""
    return (1 << 48) | (process << 24) | thread


class Report:
    """Writes one. `old`: names as text, no graphs, no list of strings for ranges; else names through StringIds, node
    ids of graphs, and times of a graph as a whole."""

    def __init__(self, path: Path, old: bool) -> None:
        self.path, self.old = path, old
        self.database = sqlite3.connect(path)
        self.strings: dict[str, int] = {}
        payload = "int64Value INTEGER" if not old else "uint64Value INTEGER"
        self.table("StringIds", "id INTEGER, value TEXT")
        self.table(
            "NVTX_EVENTS",
            "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, domainId INTEGER, "
            + ("" if old else "textId INTEGER, ")
            + payload,
        )
        self.event(75, "tcbench", 0, None, DOMAIN)
        self.event(75, "DALI", 0, None, DALI_DOMAIN)
        self.event(34, "cell " + json.dumps(TITLE), 1, None, DOMAIN)

    def table(self, name: str, columns: str) -> None:
        self.database.execute(f"CREATE TABLE {name} ({columns})")

    def insert(self, table: str, **values) -> None:
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 10
            self.insert("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def event(self, kind, text, start, end, domain, thread=MAIN, payload=None) -> None:
        text_columns = {"text": text} if self.old or kind != 59 else {"textId": self.string(text)}
        number = {} if payload is None else {"uint64Value" if self.old else "int64Value": payload}
        values = {"start": start, "end": end, "eventType": kind, "globalTid": global_id(thread), "domainId": domain}
        self.insert("NVTX_EVENTS", **values, **text_columns, **number)

    def range(self, text, start, end, domain=DOMAIN, thread=MAIN, payload=None) -> None:
        self.event(59, text, start, end, domain, thread, payload)

    def step(self, number: int, begin_ns: int, phases=("io", "forward")) -> None:
        self.range("step", begin_ns, begin_ns + 1000, payload=number)
        for n, phase in enumerate(phases):
            self.range(phase, begin_ns + 10 + 400 * n, begin_ns + 390 + 400 * n)

    def gpu_tables(self) -> None:
        graph = "" if self.old else ", graphNodeId INTEGER, graphId INTEGER"
        common = "start INTEGER, end INTEGER, globalPid INTEGER, streamId INTEGER, correlationId INTEGER" + graph
        self.table("CUPTI_ACTIVITY_KIND_KERNEL", common + ", shortName INTEGER, demangledName INTEGER")
        self.table("CUPTI_ACTIVITY_KIND_MEMCPY", common + ", bytes INTEGER, copyKind INTEGER")
        calls = "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER"
        self.table("CUPTI_ACTIVITY_KIND_RUNTIME", calls)
        if not self.old:
            self.table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", common)

    def call(self, name, start, correlation, thread=MAIN, process=PID) -> None:
        where = global_id(thread, process)
        values = {"start": start, "end": start + 5, "globalTid": where, "correlationId": correlation}
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", **values, nameId=self.string(name))

    def activity(self, kind, start, end, correlation, stream=7, process=PID, **more) -> None:
        values = {"start": start, "end": end, "globalPid": global_id(0, process), "streamId": stream}
        if "shortName" in more:
            more["shortName"] = self.string(more["shortName"])
        self.insert(f"CUPTI_ACTIVITY_KIND_{kind}", **values, correlationId=correlation, **more)

    def close(self) -> Path:
        self.database.commit()
        self.database.close()
        return self.path


@pytest.fixture(params=["old", "new"])
def report(request, tmp_path):
    sqlite_report = Report(tmp_path / "report.sqlite", request.param == "old")
    yield sqlite_report
    sqlite_report.database.close()


def test_steps_phases_and_layers_are_read_with_the_cell_that_they_are_of(report):
    report.step(3, 1000)
    report.range("stem/conv", 1420, 1500)
    report.range("stem/conv kernel", 1430, 1440)
    report.step(4, 2000)
    report.range("other tool", 1420, 1500, domain=9)
    (timeline,) = nsys.read(report.close())
    assert (timeline.label, timeline.device, timeline.batch_size) == (TITLE["label"], "cuda:0", 64)
    assert (timeline.source, timeline.phases) == ("nsys", ("io", "forward"))
    assert [(s.step, s.duration_s) for s in timeline.steps] == [(3, pytest.approx(1e-6)), (4, pytest.approx(1e-6))]
    assert [(s.name, s.phase, s.step) for s in timeline.spans_in("host", "phase")] == [
        (phase, phase, step) for step in (3, 4) for phase in ("io", "forward")
    ]
    layers = [(s.name, s.phase, s.step) for s in timeline.spans_in("host", "layer")]
    assert layers == [("stem/conv", "forward", 3), ("stem/conv kernel", "forward", 3)]


def test_kernels_and_copies_belong_to_the_phase_that_launched_them(report):
    report.step(3, 1000)
    report.gpu_tables()
    report.call("cudaMemcpyAsync_v3020", 1050, 1)
    report.call("cudaLaunchKernel_v7000", 1450, 2)
    report.call("cudaLaunchKernel_v7000", 1460, 3, thread=WORKER)
    report.activity("MEMCPY", 1100, 1200, 1, bytes=4096, copyKind=1)
    report.activity("KERNEL", 1700, 1800, 2, shortName="volta_h884cudnn")
    report.activity("KERNEL", 1700, 1800, 3, stream=20, shortName="decode")
    report.activity("KERNEL", 1700, 1800, 3, process=999, shortName="of another process")
    (timeline,) = nsys.read(report.close())
    by_name = {s.name: (s.kind, s.phase, s.step, s.bytes) for s in timeline.spans_in("gpu")}
    assert by_name == {
        "memcpy HtoD": ("copy", "io", 3, 4096),
        "volta_h884cudnn": ("kernel", "forward", 3, None),
        "decode": ("kernel", None, None, None),
    }
    assert [s.name for s in timeline.spans_in("host", "api")] == ["cudaMemcpyAsync", "cudaLaunchKernel"]


def test_nodes_of_a_launched_graph_are_the_replays(tmp_path):
    report = Report(tmp_path / "r.sqlite", old=False)
    report.step(3, 1000, ("io", "replay"))
    report.gpu_tables()
    report.call("cudaGraphLaunch_v10000", 1450, 1)
    report.activity("KERNEL", 1700, 1750, 1, graphNodeId=5, shortName="node")
    report.activity("GRAPH_TRACE", 1700, 1900, 1)
    report.activity("KERNEL", 1760, 1770, 88, graphNodeId=6, shortName="launched before the recording")
    (timeline,) = nsys.read(report.close())
    assert {(s.kind, s.phase) for s in timeline.spans_in("gpu")} == {("kernel", "replay"), ("graph", "replay")}


def test_dalis_own_ranges_are_the_inputs_work_but_for_the_steps_thread(report):
    report.step(3, 1000)
    report.range("[DALI] Run decoders", 1200, 1600, DALI_DOMAIN, WORKER)
    report.range("[DALI] inside it", 1300, 1400, DALI_DOMAIN, WORKER)
    report.range("[DALI] PopOutputs", 1020, 1030, DALI_DOMAIN, MAIN)
    (timeline,) = nsys.read(report.close())
    assert [(s.name, s.kind, s.row) for s in timeline.spans_in("io")] == [("[DALI] Run decoders", "work", 0)]


def test_a_report_without_a_mark_is_named_after_its_file(tmp_path):
    report = Report(tmp_path / "mine.sqlite", old=True)
    report.database.execute("DELETE FROM NVTX_EVENTS WHERE eventType = 34")
    report.step(0, 1000)
    assert nsys.read(report.close())[0].label == "mine"


ODD_NAMES = ("..%2fX#.sqlite", "a#b.sqlite", "a?mode=rwc&x=.sqlite", "%00.sqlite", "ü  ".encode() + b"\xff.sqlite")


@pytest.mark.parametrize("name", [*map(os.fsdecode, ODD_NAMES)])
def test_a_file_is_read_by_its_name_whatever_that_means_to_sqlite(tmp_path, name):
    (tmp_path / "inner").mkdir()
    report = Report(tmp_path / "inner" / name, old=False)
    report.step(3, 1000)
    path = report.close()
    sqlite3.connect(path.parent / "a").close()  # what the second would open otherwise
    before = sorted(tmp_path.rglob("*"))
    [timeline] = nsys.read(path)
    assert timeline.spans
    assert sorted(tmp_path.rglob("*")) == before


def test_the_steps_of_the_workers_own_recording_are_kept_in_its_time(tmp_path):
    report = Report(tmp_path / "r.sqlite", old=False)
    for number in range(4):
        report.step(number, 1000 * (number + 1))
    ((_, seen),) = nsys.recordings(report.close())
    own_steps = tuple(HostSpan("step", "step", n, None, 50_000 + n * 1000, 51_000 + n * 1000) for n in (2, 3))
    worker_recording = Recording(thread=1, phases=("io", "forward"), spans=own_steps)
    recording = nsys.merge_recordings(seen, worker_recording)
    assert [(s.step, s.begin_ns) for s in recording.spans if s.kind == "step"] == [(2, 52_000), (3, 53_000)]
    with pytest.raises(TraceError, match="none of the profiled steps"):
        nsys.merge_recordings(seen, Recording(thread=1, phases=(), spans=()))


def test_on_a_gpu_only_the_marked_steps_are_recorded_and_the_worker_goes_on():
    command = nsys.Nsys("/usr/bin/nsys", (2024, 6)).command(Path("r"), "s", kind_of("cuda:0").nsys_options((2024, 6)))
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none"} <= set(command)
    assert "--trace=cuda,nvtx" in command
    assert "--cuda-graph-trace=node" in command
    assert "--cuda-graph-trace=node" not in kind_of("cuda:0").nsys_options((2021, 4))
    assert kind_of("cpu").nsys_options((2022, 4)) == ("--trace=nvtx",)


@pytest.mark.parametrize("how", ["cut off", "foreign", "another database", "no ranges"])
def test_what_is_no_report_gets_one_clear_line(tmp_path, how):
    path = tmp_path / "r.sqlite"
    report = Report(path, old=True)
    if how != "no ranges":
        for number in range(400):
            report.step(number, 1000 * number)
    report.close()
    if how == "cut off":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "foreign":
        path.write_bytes(b"no database " * 100)
    elif how == "another database":
        path.unlink()
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE t (x INTEGER)")
        other.close()
    with pytest.raises(TraceError, match=f"^{path}: ") as error:
        nsys.read(path)
    assert "\n" not in str(error.value)


needs_nsys = pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys (Nsight Systems) is not on PATH")


@pytest.mark.slow
@pytest.mark.nsys
@needs_nsys
def test_nsight_systems_around_a_run_sees_every_step_and_phase(tmp_path):
    """Counts equal the record's, ranges nest, and host times agree with our own within 5%."""
    out = tmp_path / "results"
    command = [sys.executable, "-m", "tcbench", "run", "cpu", "--config", "fp32", "--bs", "2", "--image-size", "64"]
    command += ["--device", "cpu", "--data", "synthetic", "--max-time", "1", "--trials", "1", "--quiet"]
    command += ["--out", str(out)]
    stem = tmp_path / "report"
    around = ["nsys", "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-o", str(stem), "-f", "true"]
    done = subprocess.run([*around, *command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    (record,) = store.read([out]).records
    measured = record.measurement

    report = nsys.report_of(stem)
    (timeline,) = tracing.read(report)
    steps, phases = timeline.steps, timeline.spans_in("host", "phase")
    n_steps = measured.warmup_steps + measured.timed_steps + measured.profiled_steps
    assert [s.step for s in steps] == list(range(n_steps))
    assert Counter(s.name for s in phases) == {phase.name: n_steps for phase in measured.phases}
    assert (timeline.label, timeline.device_name) == (record.cell.label, record.environment.device_name)

    for step in steps:
        inside = [s for s in phases if s.step == step.step]
        assert [s.name for s in inside] == [phase.name for phase in measured.phases]
        assert all(step.begin_s <= s.begin_s <= s.end_s <= step.end_s for s in inside)
        assert all(a.end_s <= b.begin_s for a, b in itertools.pairwise(inside))
    profiled = set(range(n_steps - measured.profiled_steps, n_steps))
    for layer in timeline.spans_in("host", "layer"):
        assert layer.step in profiled
        assert any(s.begin_s <= layer.begin_s and layer.end_s <= s.end_s for s in phases if s.step == layer.step)
    assert timeline.spans_in("host", "layer")

    for phase in measured.phases:
        seen = sum(s.duration_s for s in phases if s.name == phase.name and s.step in profiled)
        assert seen == pytest.approx(sum(phase.host_s), rel=0.05, abs=1e-3)
    timed = sum(s.duration_s for s in steps[measured.warmup_steps : measured.warmup_steps + measured.timed_steps])
    assert timed == pytest.approx(sum(measured.step_times_s), rel=0.05)


@pytest.mark.nsys
@needs_nsys
def test_a_damaged_report_gets_one_clear_line(tmp_path):
    for suffix in nsys.REPORTS:
        path = tmp_path / f"r{suffix}"
        path.write_bytes(b"nothing that nsys wrote" * 50)
        with pytest.raises(TraceError, match="cannot read this report") as error:
            tracing.read(path)
        assert "\n" not in str(error.value)


def with_kernel(report: Report) -> Report:
    report.gpu_tables()
    report.step(3, 1000)
    report.call("cudaLaunchKernel_v7000", 1450, 1)
    report.activity("KERNEL", 1500, 1600, 1, shortName="gemm")
    report.database.commit()
    return report


@pytest.mark.parametrize(
    "table", ["NVTX_EVENTS", "StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"]
)
def test_the_newest_version_of_a_table_is_read(report, table):
    before = nsys.read(with_kernel(report).path)
    report.database.execute(f"ALTER TABLE {table} RENAME TO {table}_V3")
    report.table(f"{table}_V2", "unused INTEGER")
    report.table(table, "other INTEGER")
    assert nsys.read(report.close()) == before


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO GPU_KERNELS", r"\(tables GPU_KERNELS\)"),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO beginNs", r"\(tables CUPTI_\w+_KERNEL\)"),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", r"kernels were launched.*\(no table of kernels\)"),
        ("ALTER TABLE NVTX_EVENTS RENAME TO RANGES", "no table NVTX_EVENTS"),
        ("ALTER TABLE NVTX_EVENTS RENAME COLUMN eventType TO kind", "no table NVTX_EVENTS"),
        ("DROP TABLE StringIds", "the table StringIds is missing"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'", "not a complete SQLite export"),
    ],
)
def test_a_form_that_is_not_known_is_named_and_never_reads_as_a_gpu_that_idles(report, change, error):
    with_kernel(report).database.execute(change)
    with pytest.raises(TraceError, match=rf"report\.sqlite: .*{error}"):
        nsys.read(report.close())


def test_any_value_in_any_column_is_read_or_refused(report):
    with_kernel(report).range("[DALI] Run decoders", 1200, 1600, DALI_DOMAIN, WORKER)
    content, refused = report.close().read_bytes(), 0
    with closing(sqlite3.connect(report.path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
        columns = [(t, name) for t in tables for _, name, *_ in database.execute(f"PRAGMA table_info({t})")]
    for (table, column), odd in itertools.product(columns, ("NULL", "'soon'", "x'e4'", "1.5", "-1", "1 << 62")):
        report.path.write_bytes(content)
        with closing(sqlite3.connect(report.path)) as database:
            database.execute(f'UPDATE {table} SET "{column}" = {odd}')
            database.commit()
        for read in (tracing.read, tracing.read_training):
            try:
                read(report.path)
            except TraceError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > 100


def test_a_report_is_checked_once_and_an_error_of_the_reader_is_not_one_of_the_report(report, monkeypatch):
    path = with_kernel(report).close()
    checks: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.set_trace_callback(lambda text: checks.append(text) if "quick_check" in text else None)
        return connection

    monkeypatch.setattr(nsys_tables.sqlite3, "connect", traced)
    assert nsys.read(path) and not nsys.is_other_report(path)
    assert len(checks) == 1
    monkeypatch.setattr(nsys, "_recordings", lambda tables, name: len(7))
    with pytest.raises(TypeError):
        nsys.read(path)


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id, x AS value FROM c"


def test_a_view_without_an_end_is_not_read(report):
    with_kernel(report).database.execute("DROP TABLE StringIds")
    report.database.execute(f"CREATE VIEW StringIds AS {ENDLESS}")
    with pytest.raises(TraceError, match="the table StringIds is missing"):
        nsys.read(report.close())


def test_a_long_query_can_be_interrupted(report):
    code = f"""
import os, pathlib, signal, threading
from tcbench.tracing import nsys
count = "SELECT count(*) FROM ({ENDLESS})"
nsys._recordings = lambda tables, _: tables._connection.execute(count).fetchall()
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    nsys.read(pathlib.Path({str(with_kernel(report).close())!r}))
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n", done.stderr
