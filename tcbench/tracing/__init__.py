"""Timelines from files that Nsight Systems, CUPTI or tcbench itself recorded, and Chrome traces.

This package converts recordings to `Timeline`s. It does not analyse them."""

import tempfile
from pathlib import Path

from tcbench.core import files, store
from tcbench.core.errors import TraceError
from tcbench.core.timeline import Timeline
from tcbench.tracing import kineto, nsys, perfetto
from tcbench.tracing.attribution import from_record

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
        if name.endswith((".json", ".json.gz")):
            if kineto.is_foreign(path):
                kineto.read(path)
                raise TraceError(f"{path}: a trace of PyTorch's profiler; `tcbench explain` reads it")
            return perfetto.read(path)
        if name.endswith(".sqlite"):
            return nsys.read(path)
        if name.endswith(nsys.REPORTS):
            with files.scratch(Path(tempfile.gettempdir())) as folder:
                target = folder / f"{path.stem}.sqlite"
                nsys.to_sqlite(path, target)
                return nsys.read(target)
        if name.endswith(store.SUFFIX):
            return _read_records(path)
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None
    raise TraceError(f"{path}: expected {FILES}")


def _read_records(path: Path) -> tuple[Timeline, ...]:
    """Return the timelines of the records in a file."""
    recorded = [from_record(record) for record in store.current(store.read([path]).records)]
    timelines = tuple(timeline for timeline in recorded if timeline is not None)
    if not timelines:
        raise TraceError(f"{path}: none of its {len(recorded)} records has phase times: nothing was measured")
    return timelines
