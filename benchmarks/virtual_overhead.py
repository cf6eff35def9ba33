"""The host's time that a virtual GPU takes beyond the driver's modelled time: per launch, and per training step.

    uv run python benchmarks/virtual_overhead.py

Per launch: a task of no duration is put into a stream over and over; the mean time of a call, less the modelled
time of the driver. Goal: at most 5 us.

Per step: the whole program of host_time.py on an accelerator that does nothing and on a virtual V100, in turns, at the
smallest size. From the virtual one's time the driver's modelled time is taken off, by the requests that it made. CPU
time of this thread, the least over rounds, since other processes only add to it. Goal: within 5%. CuPy's pool, which
the accelerator that does nothing has not, takes the host time on a real GPU too.
"""

import gc
import time

from host_time import DYNAMIC, STATIC, Idle, open_settled, step

from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.protocol import Accelerator, use
from tcbench.engine.accelerators.virtual.accelerator import VirtualAccelerator
from tcbench.engine.accelerators.virtual.stream import Stream, Task
from tcbench.engine.session import Session
from tcbench.hardware import gpus

CARD = "V100"
LAUNCHES = 20_000
REPEATS = 15
MOST_PER_LAUNCH_S = 5e-6
ROUNDS = 60
MOST_PER_STEP = 0.05


class TaskListener:
    """A listener that keeps the tasks of a stream."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def task(self, task: Task, call_begin_ns: int, call_end_ns: int, begin_ns: int) -> None:
        self.tasks.append(task)

    def wait(self, call: str, begin_ns: int, end_ns: int) -> None: ...


def launch_s(driver_ns: int) -> float:
    """Seconds of one launch of a kernel that takes no time, the least over repeats."""
    stream, task = Stream(), Task("kernel", "nothing", "cudaLaunchKernel", driver_ns, 0)

    def one_pass() -> float:
        put = stream.put
        begin = time.perf_counter()
        for _ in range(LAUNCHES):
            put(task)
        return (time.perf_counter() - begin) / LAUNCHES

    return min(one_pass() for _ in range(REPEATS))


def report_launches() -> None:
    for driver_us in (0.0, 3.5, 8.4):
        seconds = launch_s(round(driver_us * 1e3))
        beyond_s = seconds - driver_us * 1e-6
        verdict = "ok" if beyond_s <= MOST_PER_LAUNCH_S else "OVER THE GOAL"
        print(f"launch, driver {driver_us:4.1f} us: {seconds * 1e6:6.2f} us, {beyond_s * 1e6:5.2f} beyond  {verdict}")


def cpu_s(session: Session, accelerator: Accelerator) -> float:
    """Return the CPU seconds of one step. Two sessions are open, so each step selects its accelerator."""
    with use(accelerator):
        begin = time.thread_time_ns()
        step(session)
        return (time.thread_time_ns() - begin) * 1e-9


def report_steps() -> None:
    print(f"\n{'CPU ms per step':36} {'nothing':>8} {'virtual':>8} {'driver':>8} {'ratio':>7}")
    for config in DYNAMIC + STATIC:
        nothing, card = Idle(), VirtualAccelerator(gpus.load(CARD), CudnnSettings())
        idle, virtual = open_settled(config, nothing), open_settled(config, card)
        driver_ns = modelled_ns(virtual, card)
        gc.collect()
        gc.freeze()  # as the measuring loop does
        pairs = [(cpu_s(idle, nothing), cpu_s(virtual, card)) for _ in range(ROUNDS)]
        idle_s, virtual_s = (min(times) for times in zip(*pairs, strict=True))
        ratio = (virtual_s - driver_ns * 1e-9) / idle_s
        verdict = "ok" if abs(ratio - 1) <= MOST_PER_STEP else "OFF THE GOAL"
        figures = " ".join(f"{seconds * 1e3:8.2f}" for seconds in (idle_s, virtual_s, driver_ns * 1e-9))
        print(f"{config:36} {figures} {ratio:7.3f}  {verdict}")


def modelled_ns(session: Session, accelerator: VirtualAccelerator) -> int:
    """The driver's modelled time in one step."""
    accelerator.stream.listener = listener = TaskListener()
    with use(accelerator):
        step(session)
    accelerator.stream.listener = None
    return sum(task.driver_ns for task in listener.tasks)


def main() -> None:
    report_launches()
    report_steps()


if __name__ == "__main__":
    main()
