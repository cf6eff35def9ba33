"""Reports of Nsight Systems on other programs than tcbench."""

import sqlite3
from contextlib import closing

import planted_traces
import pytest
from command import tcbench

from tcbench import tracing
from tcbench.analysis.trace_verdict import judge
from tcbench.core.errors import TraceError
from tcbench.tracing import nsys_training

THREAD = (1 << 48) + (planted_traces.PROCESS << 24) + planted_traces.MAIN


def changed(path, *statements):
    """Write a report, apply statements of SQL to it, and return its path."""
    planted_traces.write(path, 3, graphs=True)
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


def add_range(text, begin=1, end="2", kind=59):
    return f"INSERT INTO NVTX_EVENTS VALUES ({begin}, {end}, {kind}, '{text}', NULL, {THREAD}, 0)"


def test_ranges_of_emit_nvtx_are_operators_and_those_of_the_program_are_ranges(tmp_path):
    operators = ["aten::to", "mine::norm, op_id = 3", "AddBackward0, seq = 1, sizes = [[3]]", "ncclAllReduce"]
    backward = "autograd::engine::evaluate_function: AddBackward0, op_id = 4"
    programs = ["FSDP::forward (a), op_id = 5", "mine::train", "\x1b[31mred"]
    ranges = [add_range(text) for text in (*operators, backward, *programs)]
    ranges += [add_range("apart", kind=60), add_range("open", 1, "NULL"), add_range("mark", kind=34)]
    latin = "UPDATE NVTX_EVENTS SET text = CAST(x'e4' AS TEXT) WHERE text = 'apart'"
    path = changed(tmp_path / "t.sqlite", "DELETE FROM NVTX_EVENTS", *ranges, latin)
    trace = tracing.read_training(path)
    main = (THREAD >> 24, planted_traces.MAIN)
    assert [each.name for each in trace.ranges] == ["FSDP::forward (a)", "mine::train", r"\x1b[31mred", "\ufffd"]
    assert trace.operators == trace.backward == {main: ((1, 2),)}
    assert trace.overheads == ("shapes",)


def test_without_calls_the_cause_of_idle_time_is_unknown(tmp_path):
    verdict = judge(tracing.read_training(changed(tmp_path / "t.sqlite", "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")))
    assert verdict.causes["unknown"] == verdict.idle_ns > 0


def test_a_report_of_2021_has_its_gpus_in_another_table(tmp_path):
    rename = "ALTER TABLE TARGET_INFO_GPU RENAME TO TARGET_INFO_CUDA_GPU"
    path = changed(tmp_path / "t.sqlite", rename, "ALTER TABLE TARGET_INFO_CUDA_GPU RENAME COLUMN id TO deviceId")
    assert tracing.read_training(path).device_name == "GPU 3"


GPU_TABLES = [f"CUPTI_ACTIVITY_KIND_{name}" for name in planted_traces._WORK_TABLES.values()]
NO_GPU = [f"DROP TABLE {table}" for table in GPU_TABLES]


@pytest.mark.parametrize(
    ("statements", "error"),
    [
        (NO_GPU, "kernels were launched, but no known table lists them"),
        (
            [*NO_GPU, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"],
            "a trace of Nsight Systems without work of a GPU",
        ),
        ([f"UPDATE {GPU_TABLES[0]} SET correlationId = 'soon'"], "a number in .*_KERNEL is not a whole number"),
        (
            [f"UPDATE {GPU_TABLES[0]} SET end = 9223372036854775807"],
            "a time in .*_KERNEL is missing or too large",
        ),
        (["PRAGMA writable_schema = ON", "UPDATE sqlite_master SET rootpage = 3"], "2nd reference to page"),
        ([f"ALTER TABLE {GPU_TABLES[0]} RENAME COLUMN start TO begin"], r"\(tables CUPTI_ACTIVITY_KIND_KERNEL\)"),
    ],
)
def test_a_refusal_names_the_format_and_what_is_missing(tmp_path, statements, error):
    statements = [*statements, "DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_GRAPH_TRACE"]
    with pytest.raises(TraceError, match=f"t.sqlite: .*{error}.*") as raised:
        tracing.read_training(changed(tmp_path / "t.sqlite", *statements))
    assert "Nsight Systems" in str(raised.value) and "\n" not in str(raised.value)


def test_a_report_above_the_limit_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"more than 0\.0625 MiB; `tcbench explain --most-mib` raises the limit"):
        nsys_training.read(changed(tmp_path / "t.sqlite"), 1 << 16)


def test_a_report_is_exported_once_and_explained(tmp_path):
    changed(tmp_path / "t.sqlite").rename(tmp_path / "t.nsys-rep")
    tool = tmp_path / "nsys"
    tool.write_text('#!/bin/sh\ncase $1 in export) echo x >> log; cp "$5" "${4#*=}";; *) echo version 2025.5;; esac\n')
    tool.chmod(0o755)
    done = tcbench(tmp_path, "explain", "t.nsys-rep", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert (done.code, done.err, (tmp_path / "log").read_text()) == (0, "", "x\n")
    assert done.out.startswith("t.nsys-rep: GPU 3\n")
