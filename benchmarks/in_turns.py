"""Configs of ours, PyTorch's and stock Chainer, training ResNet-50 on the CPU in turns: ratios to the first.

    uv run python benchmarks/in_turns.py           # stock Chainer and ours, 64x64 batch 16 and 224x224 batch 8
    uv run python benchmarks/in_turns.py --config torch/fp32 --config torch/bf16+nhwc+fused_optimizer --shape 64x8

Stock is Chainer's own ResNet50Layers, MomentumSGD and weight decay on Chainer's own functions. All train on one batch
in memory, in processes of their own with the environment that tcbench's runner gives its workers. The parent lets one
of them step at a time, round by round, so that drift hits all alike. Images/s are of the median step, as are phases in
ms; ratios are of the rounds' medians, with their 95% intervals over rounds. With `--busy` each round is followed by one
beside a process that computes without end, and each config is compared with itself: how many times as long its step
takes there. `floor/bf16+nhwc` is ResNet-50's primitives in C++, see floor.py.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import floor

from tcbench.analysis import rounds as rounds_of
from tcbench.core.record import Cell, Input
from tcbench.engine.accelerators.device import host_device
from tcbench.hardware import machine
from tcbench.run import plan, scenario

OURS = ("fp32", "fp32+batched+nhwc+fused", "fp32+batched+nhwc+fused+static_graph")
STOCK = "stock Chainer"
Phases = dict[str, float]
"""Seconds of each phase of a step, or of the whole where it has no phases."""


def cell_of(config: str, image_size: int, batch_size: int, threads: int) -> Cell:
    selection = plan.Selection(
        batch_sizes=(batch_size,),
        configs=(config,),
        input=Input(kind="synthetic"),
        image_size=image_size,
        threads=threads,
    )
    return plan.make(scenario.load("peers"), selection, host_device()).cells[0].cell


def timed(run: Callable[[], None]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def our_step(cell: Cell) -> Callable[[], Phases]:
    from tcbench.engine.backends import backend

    session = backend(cell.backend).open_session(cell)
    return lambda: {phase.name: timed(phase.run) for phase in session.phases}


def stock_step(cell: Cell) -> Callable[[], Phases]:
    import numpy as np

    from tcbench.engine.backends.chainer.compat import chainer

    model = chainer.links.ResNet50Layers(pretrained_model=None)
    optimizer = chainer.optimizers.MomentumSGD(lr=cell.train.learning_rate, momentum=cell.train.momentum)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(cell.train.weight_decay))
    rng = np.random.RandomState(cell.seed)
    x = rng.standard_normal((cell.batch_size, 3, cell.image_size, cell.image_size)).astype(np.float32)
    t = rng.randint(0, cell.n_classes, cell.batch_size).astype(np.int32)

    def step() -> None:
        loss = chainer.functions.softmax_cross_entropy(model(x, layers=["fc6"])["fc6"], t)
        model.cleargrads()
        loss.backward()
        loss.unchain_backward()
        optimizer.update()

    return lambda: {"step": timed(step)}


def child(name: str, image_size: int, batch_size: int, threads: int) -> None:
    """Run a step for each line on standard input, and print the seconds of its phases as a line of JSON."""
    config = OURS[0] if name == STOCK else name
    cell = cell_of(config, image_size, batch_size, threads)
    step = stock_step(cell) if name == STOCK else our_step(cell)
    for _ in sys.stdin:
        print(json.dumps(step()), flush=True)


def command(name: str, image_size: int, batch_size: int, threads: int) -> list[str]:
    """Return the command of a process that answers like `child`."""
    if name.startswith(floor.PREFIX):
        return floor.command(name, image_size, batch_size)
    shape = f"{image_size}x{batch_size}"
    return [sys.executable, __file__, "--child", name, "--shape", shape, "--threads", str(threads)]


@contextlib.contextmanager
def children(
    names: list[str], image_size: int, batch_size: int, threads: int
) -> Iterator[dict[str, Callable[[], Phases]]]:
    variables = {**os.environ, **machine.library_variables(threads)}
    processes = {
        name: subprocess.Popen(
            command(name, image_size, batch_size, threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )
        for name in names
    }

    def step(process: subprocess.Popen[str]) -> Phases:
        assert process.stdin
        assert process.stdout
        process.stdin.write("step\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        return {
            phase: sum(seconds.values()) if isinstance(seconds, dict) else seconds for phase, seconds in answer.items()
        }

    try:
        yield {name: lambda process=process: step(process) for name, process in processes.items()}  # type: ignore[misc]
    finally:
        for process in processes.values():
            process.kill()


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """A process that computes without end."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


def compare(
    names: list[str], image_size: int, batch_size: int, threads: int, rounds: int, steps: int, busy: bool
) -> None:
    answers: dict[str, list[list[Phases]]] = {name: [] for name in names}
    busy_medians: dict[str, list[float]] = {name: [] for name in names}
    with children(names, image_size, batch_size, threads) as step:
        for name in names:
            for _ in range(3):
                step[name]()
        for _ in range(rounds):
            for name in names:
                answers[name].append([step[name]() for _ in range(steps)][1:])
            with busy_process() if busy else contextlib.nullcontext():
                for name in names if busy else ():
                    busy_medians[name].append(median_step([step[name]() for _ in range(steps)][1:]))
    medians = {name: [median_step(of_round) for of_round in answers[name]] for name in names}
    print(
        f"{image_size}x{image_size} pixels, batch {batch_size}, {threads} threads, {rounds} rounds of {steps - 1} steps"
    )
    for name in names:
        all_phases = [phases for of_round in answers[name] for phases in of_round]
        print(f"  {name:44} {batch_size / median_step(all_phases):7.2f} images/s", end="")
        for phase in all_phases[0]:
            print(f" {phase} {1e3 * statistics.median(phases[phase] for phases in all_phases):.1f}", end="")
        for base in names[: max(1, names.index(name))]:
            ratio = rounds_of.estimate(medians[base], medians[name]).ratio.interval()
            print(f"   {ratio.value:5.2f} [{ratio.low:.2f}, {ratio.high:.2f}] x {base}", end="")
        if busy:
            growth = rounds_of.estimate(busy_medians[name], medians[name]).ratio.interval()
            print(f"   step x {growth.value:.2f} [{growth.low:.2f}, {growth.high:.2f}] beside a busy process", end="")
        print()


def median_step(steps: list[Phases]) -> float:
    """Seconds of the median step."""
    return statistics.median(sum(phases.values()) for phases in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", help="PIXELSxBATCH; default 64x16 and 224x8")
    parser.add_argument("--config", action="append", help=f"default '{STOCK}' and ours")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4, help="steps per turn; the first is not counted")
    parser.add_argument("--busy", action="store_true", help="also beside a process that computes without end")
    parser.add_argument("--threads", type=int, default=machine.usable_cpus())
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.steps) < 2:
        parser.error("--rounds and --steps: expected at least 2 of each, for an interval and for a step that counts")
    for shape in arguments.shape or ["64x16", "224x8"]:
        image_size, batch_size = map(int, shape.split("x"))
        if arguments.child:
            child(arguments.child, image_size, batch_size, arguments.threads)
        else:
            names = arguments.config or [STOCK, *OURS]
            compare(names, image_size, batch_size, arguments.threads, arguments.rounds, arguments.steps, arguments.busy)


if __name__ == "__main__":
    main()
