"""Compile cuDNN plans for a GPU of another machine.

    python tools/compile_plans.py FOLDER [--limit BYTES]

FOLDER becomes a cache for `TCBENCH_CACHE` on a machine with an H100 or H200 and the same cuDNN, NVRTC and frontend as
this Python. It gets everything that the cells of naruse2018 need at batch sizes 32 to 256 before their first step:
traces, our own kernels, and the plans that cuDNN compiles. Each batch normalisation gets the two plans that a trial
times anyway. Those of batch sizes 64 and 256 then get all of their plans (about thirty), float16 first and in order of
the bytes moved per image, while the files in FOLDER, each compressed by xz, take at most BYTES. A trial times every
plan that it finds. Copy FOLDER so that it belongs to the user who runs there, and no other user can write to it.

The same command continues after an interruption.
"""

import argparse
import functools
import lzma
import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tcbench.core import cache
from tcbench.core.record import Selection
from tcbench.engine.accelerators.cuda.cudnn import ahead, graphs, libraries, plans
from tcbench.engine.accelerators.cuda.kernels import compile as kernels
from tcbench.engine.accelerators.cuda.kernels.launches import launch_of
from tcbench.engine.work import Work
from tcbench.hardware import gpus
from tcbench.run import demand, plan, scenario
from tcbench.run.devices import absent_device

CARD, OTHER_CARD = gpus.load("H200"), gpus.load("H100")
"""Two cards with the same chip: each can use the plans compiled for the other."""
BATCH_SIZES = (32, 64, 128, 256)
ALL_PLANS_AT = (64, 256)
LimitedWork = tuple[Work, int]
"""A work and its workspace limit in bytes."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=16 << 20, metavar="BYTES", help="default: 16 MiB")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per processor")
    options = parser.parse_args(arguments)
    os.environ[cache.VARIABLE] = str(options.folder.resolve())
    libraries.frontend()  # fails with one line here, rather than in each process
    fill(options.folder, options.limit, options.processes)


def fill(folder: Path, limit: int, processes: int) -> None:
    """Fill the folder up to the limit, and print its contents."""
    began = time.monotonic()
    costs = step_costs(processes)
    sources = {("stall.cu", ())}
    for work, _ in costs:
        if work.kind == "kernel":
            launch = launch_of(work)
            sources.add((launch.source, launch.defines))
    for source, defines in sorted(sources):
        kernels.compile_kernel(source, defines, CARD.sm)
    graph_works = [(work, workspace) for work, workspace in costs if work.kind == "graph"]
    compile_missing(graph_works, plans.RUNTIME_COMPILED_TIMED, processes)
    compiled = [work for work in graph_works if plans.built_from_entry(entry_of(work))]
    large = sorted(
        (work for work in compiled if costs[work][0] in ALL_PLANS_AT),
        key=lambda work: ("float16" not in work[0].key, -costs[work][1] / costs[work][0]),
    )
    complete = compile_all_plans(large, folder, limit, processes)
    n_plans = sum(len(plans.built_from_entry(entry_of(work))) for work in compiled)
    same = sum(offered(work, CARD) == offered(work, OTHER_CARD) for work in compiled)
    files = files_of(folder)
    print(
        f"{len(graph_works)} cuDNN works, {len(compiled)} of them compiled: {n_plans} plans, "
        f"all plans of {complete} works"
    )
    print(f"{OTHER_CARD.device_name} gets the same plans in the same order for {same} of {len(compiled)} works")
    print(f"cuDNN {libraries.version()}, NVRTC {libraries.nvrtc_version()}, frontend {libraries.frontend_version()}")
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files)} bytes, by xz {packed_bytes(folder)}")
    print(f"{time.monotonic() - began:.0f} s")


def step_costs(processes: int) -> dict[LimitedWork, tuple[int, int]]:
    """Return every work of the cells with its batch size and the bytes that it moves in a step."""
    _, absent = absent_device(CARD)
    planned = plan.make(scenario.load("naruse2018"), Selection(batch_sizes=BATCH_SIZES), absent, remote=True)
    cells = [planned_cell.cell for planned_cell in planned.cells if planned_cell.skip_reason is None]
    traced = demand.trace_all(cells, CARD.properties(), fresh=False, processes=processes, progress=say)
    costs: dict[LimitedWork, tuple[int, int]] = {}
    for cell, step in traced.items():
        if isinstance(step, str):
            raise SystemExit(f"{cell.config} at {cell.batch_size} cannot be traced: {step}")
        for work, count in step.works:
            costs[work, cell.cudnn.workspace_bytes] = (cell.batch_size, count * work.bytes)
    return costs


def entry_of(limited_work: LimitedWork) -> cache.Entry | None:
    """Return the folder's plans of a work, or None."""
    return plans.built_cache().get(plans.built_key(limited_work[0], CARD.properties(), limited_work[1]))


def compile_missing(works: Iterable[LimitedWork], most: float, processes: int) -> None:
    """Compile up to `most` plans of each work that has fewer."""
    missing, _ = ahead.missing_works(CARD.properties(), works, most)
    if missing:
        ahead.compile_for(CARD.json, CARD.properties(), missing, most, processes, say)


def compile_all_plans(works: Sequence[LimitedWork], folder: Path, limit: int, processes: int) -> int:
    """Compile all plans of one work after another while there is room; return the number of works that have all."""
    at_once = max(processes, 1)
    for start in range(0, len(works), at_once):
        if packed_bytes(folder) > limit:
            return start
        before = [(limited_work, entry_of(limited_work)) for limited_work in works[start : start + at_once]]
        compile_missing((limited_work for limited_work, _ in before), math.inf, processes)
        complete = full = start + len(before)
        while before and packed_bytes(folder) > limit:
            (work, workspace), smaller = before.pop()
            assert smaller is not None  # it has two plans
            plans.built_cache().put(plans.built_key(work, CARD.properties(), workspace), smaller)
            complete -= 1
        if complete < full:
            return complete
    return len(works)


def offered(limited_work: LimitedWork, card: gpus.GpuFile) -> list[str]:
    """Return the tags of the plans that cuDNN's heuristic offers for a card."""
    work, workspace = limited_work
    return list(plans.Search(work, graphs.absent_target(card.json, card.sm), card.sm, workspace)._places())


def files_of(folder: Path) -> list[Path]:
    """Return all files under a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def packed_bytes(folder: Path) -> int:
    """Return the size of the folder's files, each compressed by xz."""
    return sum(_packed(path, path.stat().st_mtime_ns) for path in files_of(folder))


@functools.cache
def _packed(path: Path, _changed_ns: int) -> int:
    return len(lzma.compress(path.read_bytes()))


def say(stage: str, done: int, total: int) -> None:
    """Print progress."""
    if done == total or done % 20 == 0:
        print(f"{stage}: {done} of {total}", flush=True)


if __name__ == "__main__":
    main()
