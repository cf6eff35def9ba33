"""Results that cannot be true are named, and honest steps pass, however odd."""

import functools
import itertools
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import factories
import msgspec
import numpy as np
import pytest
import shipped

from tcbench.analysis.summary import summarise
from tcbench.core import store
from tcbench.core.record import DeclaredWork, Input, MeasureSettings
from tcbench.engine.backends.step import Step
from tcbench.engine.clock import HostClock
from tcbench.engine.measure import loop
from tcbench.engine.measure.checks import TrialChecks
from tcbench.engine.measure.rates import rate_problem
from tcbench.engine.measure.sensitivity import ImpossibleError
from tcbench.engine.session import Phase

N, WIDTH = 16, 128
CELL = factories.make_cell(batch_size=N, input=Input(kind="own"))
LONG = bytes(30_000_000)
SERVER = [sys.executable, "-c", "import sys\nfor line in sys.stdin: sum(range(400_000))"]


class Linear:
    """A linear layer that learns the identity. `phases` replace its phases by functions of the layer."""

    def __init__(self, dtype="f4", **phases) -> None:
        self.rng, self.number, self.dtype = np.random.default_rng(0), itertools.count(), np.dtype(dtype)
        self.weights = (self.rng.standard_normal((WIDTH, WIDTH)) / 32).astype(dtype)
        self.gradient, self.inputs = np.zeros_like(self.weights), self.samples(N)
        self.pool, self.queue, self.over = ThreadPoolExecutor(4), Queue(3), threading.Event()
        steps = {"io": load, "forward": forward, "backward": backward, "update": update} | phases
        self.phases = [Phase(name, functools.partial(run, self)) for name, run in steps.items()]
        self.probes = {"batch": lambda: [self.inputs], "weights": lambda: [self.weights]}
        self.probes |= {"gradients": lambda: [self.gradient], "precision": self.dtype.name}

    def samples(self, n: int) -> np.ndarray:
        return self.rng.standard_normal((n, WIDTH)).astype(self.dtype)

    def loss(self) -> float:
        return float(np.mean(self.error.astype("f8") ** 2))

    def finding(self, synchronize=lambda: None, **facts) -> str:
        """Measure the layer. Return why that failed, or the doubts about it."""
        session = Step(self.phases, **{"loss": self.loss, **self.probes, **facts})
        try:
            settings = MeasureSettings(max_time_s=0.05, target=1e-9)
            measured = loop.measure(session, settings, checks=TrialChecks(session, CELL, synchronize))
            return rate_problem(CELL, measured, "", self.dtype.name) or "; ".join(measured.doubts)
        except ImpossibleError as error:
            return str(error)
        finally:
            self.over.set()


def load(layer: Linear) -> None:
    layer.inputs = layer.samples(N)


def forward(layer: Linear, n: int = N, dtype: str | None = None) -> None:
    inputs = layer.inputs[:n].astype(dtype or layer.dtype).astype(layer.dtype)
    layer.error = inputs @ layer.weights - inputs


def backward(layer: Linear) -> None:
    layer.gradient = layer.inputs[: len(layer.error)].T @ layer.error


def update(layer: Linear) -> None:
    layer.weights -= (0.001 * layer.gradient).astype(layer.dtype)


def tokens(layer: Linear) -> None:
    layer.inputs = layer.rng.integers(0, WIDTH, N)


def embed(layer: Linear, dtype: str = "f4") -> None:
    layer.error = layer.weights[layer.inputs].astype(dtype).astype("f4") - 1


def scatter(layer: Linear) -> None:
    layer.gradient = np.zeros_like(layer.weights)
    np.add.at(layer.gradient, layer.inputs, layer.error)


def idle(layer: Linear) -> None:
    """Do nothing."""


def every_second(phase):
    return lambda layer: phase(layer) if next(layer.number) % 2 else None


def cached(layer: Linear) -> None:
    layer.error = getattr(layer, "error", layer.inputs)


def from_weights(layer: Linear) -> None:
    layer.error = layer.weights[:N].copy()


def in_thread(layer: Linear) -> None:
    layer.pool.submit(lambda: layer.over.is_set() or zlib.crc32(LONG))  # without Python's lock


UNSEEN = dict.fromkeys(("batch", "weights", "gradients"))


class SlowClock(HostClock):
    """A clock of a user's step that shows half of the time."""

    def read(self) -> tuple[float, ...]:
        return tuple(time_s / 2 for time_s in super().read())


@pytest.mark.parametrize(
    ("layer", "facts", "reason"),
    [
        (Linear(forward=cached), {}, "cached output: the loss is"),
        (Linear(forward=from_weights), {}, "cached output: the loss does not depend on the batch"),
        (Linear(io=idle), {}, "the same batch in every step"),
        (Linear(backward=every_second(backward)), {}, "backward skipped in some steps"),
        (Linear(backward=every_second(backward)), UNSEEN, "backward skipped in every second step"),
        (Linear(update=idle), {}, "weights never updated"),
        (
            Linear(io=lambda layer: setattr(layer, "inputs", layer.samples(8))),
            {},
            "smaller batch than declared: an array",
        ),
        (Linear(forward=functools.partial(forward, n=8)), {}, "smaller batch than declared: the last 2 of 16 samples"),
        (Linear(forward=functools.partial(forward, dtype="f2")), {}, "lower precision than declared: numbers"),
        (Linear("f8", forward=functools.partial(forward, dtype="f4")), {}, "lower precision than declared: numbers"),
        (Linear(io=tokens, forward=functools.partial(embed, dtype="f2"), backward=scatter), {}, "lower precision than"),
        (Linear("f2"), {"precision": "float32"}, "lower precision than declared: the weights are float16"),
        (Linear(backward=in_thread), UNSEEN, "work left in a thread or child process"),
        (Linear(), {"clock": SlowClock()}, "a patched clock: steps took"),
        (Linear(), {"flops": 1e15}, "overstated `flops` or `bytes`"),
        (Linear(), {"bytes": {"update": 1e15}}, "overstated `flops` or `bytes`"),
    ],
)
def test_a_step_that_cheats_is_named(layer, facts, reason):
    assert layer.finding(**facts).startswith(reason)


def test_work_left_in_a_child_is_named():
    with subprocess.Popen(SERVER, stdin=subprocess.PIPE, bufsize=0) as child:
        layer = Linear(update=lambda layer: (update(layer), child.stdin.write(b"\n")))
        assert layer.finding().startswith("work left in a thread or child process")
        child.kill()


def test_a_patched_clock_is_named(monkeypatch):
    real = time.perf_counter_ns
    monkeypatch.setattr(time, "perf_counter_ns", lambda: real() // 2)
    assert Linear().finding() == "a patched clock: other code has replaced time.perf_counter_ns"


def test_work_left_on_a_side_stream_is_named():
    """Each step leaves 4 ms of work to a device, for which only `synchronize` waits."""
    layer = Linear(update=lambda layer: (update(layer), next(layer.number)))
    assert layer.finding(lambda: time.sleep(min(0.5, 0.004 * next(layer.number)))).startswith("work left on a side")


def test_rates_above_a_published_peak_are_refused_by_precision():
    gpu, measured = factories.make_cell("fp32", 256, device="cuda:0"), factories.make_measurement((0.01,) * 12)
    for precision, peak_flops_s in (("float16", 989.4e12), ("float32", 494.7e12), (None, 4 * 989.4e12)):
        for factor, is_refused in ((0.99, False), (1.03, True)):
            declared = (DeclaredWork(phase="", flops=factor * 0.01 * peak_flops_s),)
            work = msgspec.structs.replace(measured, macs_per_image=0, declared=declared)
            assert bool(rate_problem(gpu, work, "NVIDIA H200", precision)) is is_refused
    fast = msgspec.structs.replace(measured, step_times_s=(1e-5,) * 12)
    assert rate_problem(gpu, fast, "NVIDIA H200", None).startswith("smaller batch than declared")
    assert rate_problem(gpu, fast, "an unknown GPU", None) == ""


# --------------------------------------------------------------------------------------------------------------- honest


def dropout(layer: Linear) -> None:
    forward(layer)
    layer.error *= layer.rng.random(layer.error.shape) < 0.5


def clear(layer: Linear) -> None:
    update(layer)
    layer.gradient[...] = 0


def divided(layer: Linear) -> None:
    layer.gradient = sum(layer.pool.map(lambda part: layer.inputs[part::4].T @ layer.error[part::4], range(4)))


def beside_thread(layer: Linear, work, load=load) -> None:
    """Start a thread in the first step that repeats `work` until the measurement is over."""
    if not next(layer.number):
        threading.Thread(target=lambda: [work(layer) for _ in iter(layer.over.is_set, True)], daemon=True).start()
    load(layer)


PREFETCHED = functools.partial(
    beside_thread,
    work=lambda layer: layer.queue.put(layer.samples(N)),
    load=lambda layer: setattr(layer, "inputs", layer.queue.get()),
)


TRANSPOSED, COPIED = Linear(), Linear()


@pytest.mark.parametrize(
    ("layer", "facts"),
    [
        (Linear(), {}),
        (Linear("f2"), {}),
        (Linear("f8"), UNSEEN),
        (Linear(forward=dropout), {}),
        (Linear(update=every_second(update)), {}),
        (Linear(backward=every_second(backward)), {"period": 2, "gradients": None}),
        (Linear(update=clear), {}),
        (Linear(io=tokens, forward=embed, backward=scatter), {}),
        (TRANSPOSED, {"batch": lambda: [TRANSPOSED.inputs.T]}),
        (COPIED, {"batch": lambda: [COPIED.inputs.copy()]}),
        (Linear(backward=divided), {}),
        (Linear(io=PREFETCHED), {}),
        (Linear(io=functools.partial(beside_thread, work=lambda layer: sum(range(1000)))), {}),
    ],
)
def test_an_odd_honest_step_passes(layer, facts):
    assert layer.finding(**facts) == ""


def test_no_shipped_record_is_refused():
    records = store.read(shipped.ROOT / file for file in shipped.files() if file.suffix == ".jsonl").records
    assert [record.status for record in store.current(records)].count("failed") == 0
    problems = {rate_problem(r.cell, r.measurement, r.environment.device_name, None) for r in records if r.measurement}
    assert (len(records) > 400, problems) == (True, {""})


def test_a_loss_that_two_batch_sizes_share_to_the_bit_is_a_doubt():
    records = [factories.remeasured(factories.make_record("fp32", size), checks={"clock": ""}) for size in (4, 8, 8)]
    other = factories.remeasured(factories.make_record("fp32", 16), checks={"clock": ""}, warmup_loss=6.9000001)
    doubt = "the loss 6.9 is the same to the bit in another cell"
    assert [summary.doubts for summary in summarise([*records, other])] == [(doubt,), (doubt,), ()]
    assert [summary.doubts for summary in summarise(records[1:])] == [()]
