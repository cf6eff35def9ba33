"""Timelines and traces from files that Nsight Systems, CUPTI, PyTorch's profiler or tcbench itself recorded.

This package converts recordings to `Timeline`s, which show steps that tcbench arranged, and to `TrainingTrace`s, which
show any program. It does not analyse them."""

import atexit
import contextlib
import functools
import tempfile
from pathlib import Path

from tcbench.core import files, store
from tcbench.core.errors import TraceError
from tcbench.core.timeline import Timeline
from tcbench.core.training_trace import TrainingTrace
from tcbench.tracing import kineto, nsys, nsys_training, perfetto
from tcbench.tracing.attribution import from_record

MOST_BYTES = kineto.MOST_BYTES
_REPORTS = (".sqlite", *nsys.REPORTS)
_WITHOUT_WORK = {
    "pytorch": "a trace of PyTorch's profiler without work of a GPU; record it with activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA], or with CUDA_VISIBLE_DEVICES= if the program trains on the CPU",
    "nsys": "a trace of Nsight Systems without work of a GPU; record it with `nsys profile --trace=cuda,nvtx`",
}
_EXPORTS = contextlib.ExitStack()
atexit.register(_EXPORTS.close)

FILES = ".json.gz, .json (a trace), .sqlite, .nsys-rep, .qdrep, .qdstrm (Nsight Systems) or .jsonl (records)"


def read(path: Path) -> tuple[Timeline, ...]:
    """Read the timelines in a file, whose suffix (`FILES`) tells its format. Timelines of records consist of their
    phase times, end to end. Raises TraceError or StoreError with one line about the file and what is wrong with it."""
    if not path.is_file():
        raise TraceError(f"{path}: no such file; `tcbench profile` writes traces")
    if path.stat().st_size == 0:
        raise TraceError(f"{path}: the file is empty")
    name = path.name.lower()
    try:
        if is_training(path):
            raise TraceError(f"{path}: a trace of another program; `tcbench explain` reads those of any training")
        if name.endswith((".json", ".json.gz")):
            return perfetto.read(path)
        if name.endswith(_REPORTS):
            return nsys.read(_exported(path))
        if name.endswith(store.SUFFIX):
            return _read_records(path)
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None
    raise TraceError(f"{path}: expected {FILES}")


def is_training(path: Path) -> bool:
    """Return whether a file is a trace of any training, without steps of tcbench, which `read_training` reads. A file
    that cannot be read is not one."""
    name = path.name.lower()
    if name.endswith(_REPORTS):
        return nsys.is_other_report(_exported(path))
    return name.endswith((".json", ".json.gz")) and kineto.is_foreign(path)


def read_training(path: Path, most_bytes: int = MOST_BYTES) -> TrainingTrace:
    """Return the trace of any training in a file of at most `most_bytes` when unpacked. Raises TraceError, also if the
    trace has no work of a GPU and the program did not train on the CPU."""
    is_report = path.name.lower().endswith(_REPORTS)
    trace = nsys_training.read(_exported(path), most_bytes) if is_report else kineto.read(path, most_bytes)
    if not trace.is_on_cpu and all(activity.begin_ns == activity.end_ns for activity in trace.activities):
        raise without_work(path, trace)
    return trace


def without_work(path: Path, trace: TrainingTrace) -> TraceError:
    """Return the error for a trace that has no work of a GPU, with what would record it."""
    return TraceError(f"{path}: {_WITHOUT_WORK[trace.source]}")


def _exported(path: Path) -> Path:
    """Return the SQLite export of a report, which is the path itself if it is one. Raises TraceError."""
    return path if path.suffix.lower() == ".sqlite" else _export(path.resolve(), path.stat().st_mtime_ns)


@functools.cache
def _export(report: Path, _changed_ns: int) -> Path:
    """Export a report to SQLite, into a folder that exists until the process ends."""
    folder = _EXPORTS.enter_context(files.scratch(Path(tempfile.gettempdir())))
    target = folder / f"{report.stem}.sqlite"
    nsys.to_sqlite(report, target)
    return target


def _read_records(path: Path) -> tuple[Timeline, ...]:
    """Return the timelines of the records in a file."""
    recorded = [from_record(record) for record in store.current(store.read([path]).records)]
    timelines = tuple(timeline for timeline in recorded if timeline is not None)
    if not timelines:
        raise TraceError(f"{path}: none of its {len(recorded)} records has phase times: nothing was measured")
    return timelines
