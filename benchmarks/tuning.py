"""Candidates of tuning cuDNN's plans from an empty cache, by config, and the time to build them. Needs no GPU.

    uv run --extra cuda12 python benchmarks/tuning.py --gpu H100 --bs 64 --budget 60 fp32 fp16+batched+nhwc+fused

Each config in a process of its own, since cuDNN keeps in a process what it has compiled. On a GPU the timing comes on
top, within the same budget.
"""

import argparse
import functools
import multiprocessing
import time

from tcbench.engine.accelerators.cuda.cudnn import graphs
from tcbench.engine.accelerators.cuda.cudnn.plans import Search, compiled_timed
from tcbench.engine.accelerators.device import Device
from tcbench.hardware import gpus
from tcbench.run import demand, plan, scenario


def tuned(request: tuple[str, str, int, float]) -> str:
    """One row of the table."""
    config, name, batch_size, budget_s = request
    gpu = gpus.load(name)
    device = Device("cuda:0", gpu.device_name, gpu.memory_bytes, divmod(gpu.sm, 10))
    chosen = plan.Selection(configs=(config,), batch_sizes=(batch_size,))
    (planned,) = plan.make(scenario.load("beyond"), chosen, device, remote=True).cells
    (traced,) = demand.trace_all(
        [planned.cell], gpu.properties(), fresh=False, processes=1, progress=lambda *_: None
    ).values()
    works = [work for work, _ in traced.works if work.kind == "graph"]
    began, began_cpu, offered, timed = time.perf_counter(), time.process_time(), 0, 0
    for work in works:
        search = Search(work, graphs.absent_target(gpu.json, gpu.sm), gpu.sm, planned.cell.cudnn.workspace_bytes)
        has_time = functools.partial(_has_time, began + budget_s)
        candidates, left_out, _ = search.shortlist({}, has_time, compiled_timed(budget_s))
        timed += len(candidates)
        offered += len(candidates) + left_out
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    return f"{config:40} {len(works):6} {offered:8} {timed:6} {wall_s:8.1f} {cpu_s:13.1f}"


def _has_time(until: float) -> bool:
    return time.perf_counter() < until


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("configs", nargs="+")
    options.add_argument("--gpu", default="H100")
    options.add_argument("--bs", type=int, default=64)
    options.add_argument("--budget", type=float, default=60.0)
    chosen = options.parse_args()
    print(f"{'config':40} {'works':>6} {'offered':>8} {'timed':>6} {'wall, s':>8} {'processor, s':>13}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = [(config, chosen.gpu, chosen.bs, chosen.budget) for config in chosen.configs]
        for row in pool.imap(tuned, rows, chunksize=1):
            print(row, flush=True)


if __name__ == "__main__":
    main()
