"""Host time: of a training step of ResNet-50 whose launches do nothing, and of one prepared piece of cuDNN work.

    uv run python benchmarks/host_time.py

A step is the whole program (a batch from memory, forward, backward, update) on an accelerator that computes nothing, at
the smallest size, so that its arrays cost next to nothing. CPU time of this thread, the configs in turn, medians over
rounds. Goals: at most 8 ms, at most 2 ms with `static_graph`.

Of cuDNN's work, the executing call is replaced by one that does nothing: everything up to and including the crossing
from Python into a compiled function is timed. Goal: at most 10 us. Where cuDNN is installed, the frontend's real
function is timed too: without a GPU it refuses for want of a handle, which costs an exception but no launch. Needs a C
compiler, no GPU and no CUDA.
"""

import ctypes
import gc
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tcbench.core.record import Input
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator
from tcbench.engine.accelerators.cuda.cudnn import calls, graphs, libraries
from tcbench.engine.accelerators.cuda.cudnn.plans import PlanFacts, ReadyPlan, Search
from tcbench.engine.accelerators.device import OpenDevice, host_device
from tcbench.engine.backends.chainer.session import ChainerSession
from tcbench.engine.clock import HostClock
from tcbench.engine.session import Session
from tcbench.engine.work import (
    BatchNormBackward,
    BatchNormCallBackward,
    BatchNormCallForward,
    BatchNormForward,
    Conv2d,
    ConvFprop,
    Norm,
    Work,
)
from tcbench.hardware import gpus
from tcbench.run import plan, scenario

DYNAMIC = ("fp32", "fp32+batched+nhwc+fused", "fp16+batched+nhwc+fused")
STATIC = tuple(f"{config}+static_graph" for config in DYNAMIC)
STEP_GOALS_S = dict.fromkeys(DYNAMIC[1:], 8e-3) | dict.fromkeys(STATIC, 2e-3)
ROUNDS = 100
SETTLING_STEPS = 4

GOAL_S = 10e-6
CALLS = 20_000
REPEATS = 15
WORKSPACE = 1 << 20

CONV = ConvFprop(Conv2d(32, 64, 56, 56, 64, 3, 3, 1, 1, "NHWC", "float16"))
PLAIN = Norm(32, 256, 56, 56, "NCHW", "float32")
FUSED = Norm(32, 256, 56, 56, "NHWC", "float16", "add_relu")
GRAPHS: list[Work] = [CONV, BatchNormForward(FUSED, 2e-5, 0.1), BatchNormBackward(FUSED)]
CALLED: list[Work] = [
    BatchNormCallForward(PLAIN, 2e-5, 0.1, True),
    BatchNormCallBackward(PLAIN, 2e-5, True),
    BatchNormCallForward(FUSED, 2e-5, 0.1, True),
    BatchNormCallBackward(FUSED, 2e-5, True),
]


class Idle(NumpyAccelerator):
    """Has arrays and computes nothing."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.launches = 0

    def launch(self, work: Work, *arrays: Any) -> None:
        self.launches += 1

    def prepare(self, work: Work, *arrays: Any) -> Callable[[], None]:
        return self._launch

    def _launch(self) -> None:
        self.launches += 1


def open_settled(config: str, accelerator: Any) -> Session:
    """A session that does what it does once no more."""
    selection = plan.Selection(
        batch_sizes=(1,), configs=(config,), input=Input(kind="synthetic"), image_size=32, threads=1
    )
    cell = plan.make(scenario.load("cpu"), selection, host_device()).cells[0].cell
    session = ChainerSession(cell, OpenDevice(accelerator, HostClock(), lambda: 0, accelerator.enter))
    for _ in range(SETTLING_STEPS):
        step(session)
    return session


def step(session: Session) -> None:
    for phase in session.phases:
        phase.run()


def phases_s(session: Session) -> list[float]:
    """CPU seconds of each phase of one step."""
    marks = [time.thread_time_ns()]
    for phase in session.phases:
        phase.run()
        marks.append(time.thread_time_ns())
    return [(end - begin) * 1e-9 for begin, end in itertools.pairwise(marks)]


def function_calls(session: Session) -> int:
    """Python functions that one step calls: a size that no machine's noise changes."""
    count = 0

    def on_event(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(on_event)
    try:
        step(session)
    finally:
        sys.setprofile(None)
    return count


def report_steps() -> None:
    accelerator = Idle()
    sessions = {config: open_settled(config, accelerator) for config in DYNAMIC + STATIC}
    gc.collect()
    gc.freeze()  # as the measuring loop does
    times: dict[str, list[list[float]]] = {config: [] for config in sessions}
    for _ in range(ROUNDS):
        for config, session in sessions.items():
            times[config].append(phases_s(session))
    names = [phase.name for phase in session.phases]
    print(f"{'CPU ms per step':38} {'launches':>8} {'calls':>6} " + " ".join(f"{name:>8}" for name in [*names, "step"]))
    for config, session in sessions.items():
        calls = function_calls(session)
        accelerator.launches = 0
        step(session)
        medians = [statistics.median(column) for column in zip(*times[config], strict=True)]
        step_s = statistics.median(map(sum, times[config]))
        goal = STEP_GOALS_S.get(config)
        verdict = "" if goal is None else "ok" if step_s <= goal else f"OVER {goal * 1e3:.0f} ms"
        cells = " ".join(f"{seconds * 1e3:8.2f}" for seconds in [*medians, step_s])
        print(f"{config:38} {accelerator.launches:8} {calls:6} {cells}  {verdict}".rstrip())


def median_s(run: Callable[[], Any], n_calls: int = CALLS) -> float:
    """Median over repeats of the mean time of a call, less what the loop itself takes."""

    def one_pass(function: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        for _ in range(n_calls):
            function()
        return (time.perf_counter() - begin) / n_calls

    one_pass(run)
    empty = statistics.median(one_pass(lambda: None) for _ in range(REPEATS))
    return statistics.median(one_pass(run) for _ in range(REPEATS)) - empty


def compile_nothing(folder: Path) -> ctypes.CDLL:
    """A library in which every function that tcbench calls returns at once, with success."""
    names = [*calls._SIGNATURES, "cudnnGetErrorString", "cudnnGetLastErrorString", "execute"]
    source = folder / "nothing.c"
    source.write_text("".join(f"int {name}() {{ return 0; }}\n" for name in names))
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("this benchmark needs a C compiler: install gcc or clang")
    built = folder / "libnothing.so"
    subprocess.run([compiler, "-w", "-O2", "-shared", "-fPIC", str(source), "-o", str(built)], check=True)
    return ctypes.CDLL(str(built))


def addresses(work: Work) -> list[int]:
    return [0x7F00_0000_0000 + 4096 * index for index in range(len(work.operands))]


def graph_call(work: Work, nothing: ctypes.CDLL) -> Callable[[], None]:
    """The plan's own code, ending in a C function of the same four arguments."""
    execute = nothing.execute
    execute.argtypes = [ctypes.c_ssize_t] * 4
    graph = type("Graph", (), {"_execute_with_raw_ptrs": staticmethod(execute)})()
    plan, where = ReadyPlan(work, PlanFacts("none", WORKSPACE, 0, 1), graph, 77), addresses(work)
    return lambda: plan(where, WORKSPACE)


def older_call(work: Work, nothing: ctypes.CDLL) -> Callable[[], None]:
    (call, _), where = calls.prepare_call(work, 77, calls.Library(nothing)), addresses(work)
    return lambda: call(where, WORKSPACE)


def refused(work: Work) -> Callable[[], None]:
    """A real plan for a GPU that is not there, executed with no handle."""
    gpu = gpus.load("H200")
    search = Search(work, graphs.absent_target(gpu.json, gpu.sm), gpu.sm, 512 << 20)
    plan = ReadyPlan(work, PlanFacts(search.first().plan, 0, 0, 1), search.graph, 0)
    where = addresses(work)

    def run() -> None:
        try:
            plan(where, WORKSPACE)
        except Exception:
            return
        raise SystemExit("cuDNN executed a plan without a handle")

    return run


def report(route: str, work: Work, seconds: float, *, goal: bool = True) -> None:
    verdict = ("ok" if seconds <= GOAL_S else "OVER THE GOAL") if goal else ""
    print(f"{route:28} {work.name:26} {len(work.operands):2} operands {seconds * 1e6:7.2f} us  {verdict}".rstrip())


def main() -> None:
    report_steps()
    with tempfile.TemporaryDirectory() as folder:
        nothing = compile_nothing(Path(folder))
        for work in GRAPHS:
            report("graph, C no-op", work, median_s(graph_call(work, nothing)))
        for work in CALLED:
            report("older call, C no-op", work, median_s(older_call(work, nothing)))
    if libraries.problem() is None:
        for work in GRAPHS:
            report("graph, frontend that refuses", work, median_s(refused(work), 2_000), goal=False)


if __name__ == "__main__":
    main()
