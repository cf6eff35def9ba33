"""Training sessions on the virtual GPU: against the forecast of the same cell, and through the real worker."""

import contextlib
import functools
import itertools
import json
import math

import factories
import msgspec
import pytest
import timelines

from tcbench.core import recording
from tcbench.core.record import Cell, Input
from tcbench.core.recording import Title
from tcbench.engine.accelerators import device
from tcbench.engine.accelerators.attained import timing_model
from tcbench.engine.accelerators.device import Device, kind_of
from tcbench.engine.accelerators.tracing import Trace
from tcbench.engine.accelerators.virtual.stream import Task
from tcbench.engine.backends import trace_cell
from tcbench.engine.backends.chainer.session import ChainerSession
from tcbench.engine.backends.chainer.sites import open_site
from tcbench.engine.measure import loop, worker
from tcbench.engine.measure.recorder import SpanRecorder
from tcbench.hardware import gpus
from tcbench.hardware.gpus import ALLOWANCE_BYTES
from tcbench.run import plan, scenario
from tcbench.tracing import perfetto
from tcbench.tracing.attribution import assemble

pytestmark = pytest.mark.usefixtures("thin_network")

SYNTHETIC = Input(kind="synthetic")
CARDS = {"V100": "naruse2018", "H200": "beyond"}
"""A scenario whose configs run on the card."""

FEEDS = {"dali", "opencv"}
"""Rungs that a synthetic input makes the same."""


def cells(card: str) -> list[Cell]:
    """One of every config of a scenario that the card runs, but for what only feeds otherwise."""
    selection = plan.Selection(batch_sizes=(2,), image_size=32, input=SYNTHETIC)
    planned = plan.make(scenario.load(CARDS[card]), selection, kind_of("virtual:").select(card)).cells
    runs = [
        tuple(rung for rung in plan.cell.rungs if rung not in FEEDS) for plan in planned if plan.skip_reason is None
    ]
    cell = planned[0].cell
    return [msgspec.structs.replace(cell, config="+".join(rungs), rungs=rungs) for rungs in dict.fromkeys(runs)]


class Asked:
    """A listener that keeps what is asked of a stream."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def task(self, task: Task, call_begin_ns: int, call_end_ns: int, begin_ns: int) -> None:
        self.tasks.append(task)

    def wait(self, call: str, begin_ns: int, end_ns: int) -> None: ...


@contextlib.contextmanager
def session_of(cell: Cell):
    site = open_site(cell)
    with contextlib.closing(ChainerSession(cell, site)) as session:
        yield session, site.accelerator


def step(session: ChainerSession) -> None:
    for phase in session.phases:
        phase.run()


@functools.cache
def forecast(card: str, cell: Cell) -> Trace:
    return trace_cell(cell, gpus.load(card).properties())


@pytest.mark.slow
@pytest.mark.parametrize("card", CARDS)
def test_launches_times_and_memory_are_the_forecasts(card):
    for cell in cells(card):
        with session_of(cell) as (session, accelerator):
            for _ in range(4):
                step(session)
            while not all(phase.settled() for phase in session.phases):
                step(session)
            accelerator.stream.listener = listener = Asked()
            step(session)
        trace = forecast(card, cell)
        done = [node for task in listener.tasks for node in (task.nodes or (task,)) if node.kind == "kernel"]
        assert [task.name for task in done] == [work.name for work in trace.works], cell.config
        times_s = [task.device_ns * 1e-9 for task in done]
        assert times_s == pytest.approx(
            [timing_model(gpus.load(card)).expected_s(work) for work in trace.works], abs=1e-9
        )
        assert len(listener.tasks) == sum(len(phase.events) for phase in trace.step), cell.config
        workspace = cell.cudnn.workspace_bytes if any(work.kind == "graph" for work in trace.works) else 0
        assert accelerator.device.peak_alive_bytes - workspace == trace.peak_bytes, cell.config


def test_a_card_runs_and_refuses_what_the_real_one_would():
    configs = [config for name in ("naruse2018", "beyond", "settings") for config in scenario.load(name).configs]
    for card in gpus.NAMES:
        virtual = kind_of("virtual:").select(card)
        real = Device("cuda:0", virtual.title, virtual.memory_bytes, virtual.compute_capability)
        for config in configs:
            assert plan.why_not(config, virtual, remote=True) == plan.why_not(config, real, remote=True), config.name
    refused = {config.name for config in configs if plan.why_not(config, kind_of("virtual:").select("V100"))}
    assert any("bf16" in name for name in refused)
    assert any("convstats" in name for name in refused)


@pytest.fixture
def small_card(tmp_path):
    """A V100 with so many bytes beside what a process holds."""

    def write(n_bytes: int) -> str:
        content = json.loads(gpus.load("V100").json) | {"totalGlobalMem": ALLOWANCE_BYTES + n_bytes}
        path = tmp_path / f"{n_bytes}.json"  # read once by its name
        path.write_text(json.dumps(content))
        return f"virtual:{path}"

    return write


def cell_on(name: str, **changes) -> Cell:
    cell = factories.make_cell("fp16", 2, model="thin", image_size=32, input=SYNTHETIC, device=name, **changes)
    measure = msgspec.structs.replace(cell.measure, max_time_s=0.05, min_timed_steps=4, profiled_steps=2)
    return msgspec.structs.replace(cell, measure=measure)


def test_out_of_memory_is_a_record(small_card):
    finished = worker.run(cell_on(small_card(2**30)), lambda message: None)
    assert finished.status == "ok"
    finished = worker.run(cell_on(small_card(2**20)), lambda message: None)
    assert finished.status == "oom"
    assert finished.reason.startswith("out of memory: ")
    assert finished.reason.endswith("the GPU has 501.0 MiB")


def test_a_record_says_that_it_was_simulated_and_has_no_loss():
    finished = worker.run(cell_on("virtual:V100", host_speed=0.5), lambda message: None)
    assert (finished.measurement.warmup_loss, finished.measurement.last_loss) == (None, None)
    simulated = finished.environment.simulated
    assert (simulated.card, simulated.host_speed) == ("Tesla V100-SXM2-16GB", 0.5)
    assert simulated.host == finished.environment.cpu
    assert msgspec.json.decode(msgspec.json.encode(finished.measurement))["last_loss"] is None


@pytest.mark.parametrize("host_speed", [0.25, 1.0, 4.0])
def test_what_the_device_needs_is_the_same_whatever_the_hosts_speed(host_speed):
    cell = msgspec.structs.replace(cell_on("virtual:V100", host_speed=host_speed), batch_size=64, image_size=64)
    with session_of(cell) as (session, accelerator):
        for _ in range(3):
            step(session)
        accelerator.stream.listener = listener = Asked()
        step(session)
    needed_s = sum(task.device_ns for task in listener.tasks) * 1e-9 / host_speed
    trace = forecast("V100", cell)
    assert needed_s == pytest.approx(
        sum(timing_model(gpus.load("V100")).expected_s(work) for work in trace.works), rel=1e-3
    )


def test_times_of_a_host_that_seems_faster_are_shorter():
    measurement = factories.make_measurement()
    halved = loop.at_host_speed(measurement, 2.0)
    for name in ("warmup_times_s", "step_times_s"):
        assert getattr(halved, name) == pytest.approx([t / 2 for t in getattr(measurement, name)])
    assert halved.phases[0].host_s == pytest.approx([t / 2 for t in measurement.phases[0].host_s])
    assert loop.at_host_speed(measurement, 1.0) == measurement


def test_the_hosts_speed_is_for_simulated_devices_alone():
    with pytest.raises(device.SelectionError, match="--host-speed needs a simulated device; cpu is real"):
        plan.make(scenario.load("cpu"), plan.Selection(host_speed=0.5), device.host_device())


@pytest.mark.parametrize(
    "config",
    [
        "fp16+batched+nhwc+fused",
        "fp16+batched+nhwc+fused+cuda_graph",
        pytest.param("fp32+kfac", marks=pytest.mark.slow),
    ],
)
def test_a_recording_has_the_devices_work_phase_by_phase(tmp_path, config):
    cell = msgspec.structs.replace(cell_on("virtual:V100"), config=config, rungs=tuple(config.split("+")))
    recorder, activities = SpanRecorder(), kind_of(cell.device).activities()
    with session_of(cell) as (session, _):
        while not all(phase.settled() for phase in session.phases):
            step(session)
        step(session)
        session.clock.read()
        profiling = loop.Profiling(recorder=recorder, around=activities.recording)
        loop.profile(session, loop.Ranges([phase.name for phase in session.phases]), 2, 0, profiling)
        names = tuple(phase.name for phase in session.phases)
    own_recording = recording.Recording(
        thread=activities.calls[0].thread,
        phases=names,
        spans=recorder.spans,
        calls=activities.calls,
        activities=activities.activities,
    )
    title = Title(label="x", device=cell.device, device_name="V100", batch_size=2)
    timeline = assemble(title, own_recording, "simulated")
    kernels = [span for span in timeline.spans_in("gpu") if span.kind == "kernel"]
    assert len(kernels) == 2 * len(forecast("V100", cell).works)
    assert {span.phase for span in kernels} == set(names) - {"io"}
    assert all(a.end_s <= b.begin_s + 1e-9 for a, b in itertools.pairwise(kernels))
    launches = [span for span in timeline.spans_in("host", "api") if "Launch" in span.name]
    assert len(launches) == (2 if "cuda_graph" in config else len(kernels))
    assert all(math.isfinite(span.duration_s) and span.duration_s > 0 for span in launches)
    perfetto.write([timeline], tmp_path / "trace.json")
    assert timelines.crossing(tmp_path / "trace.json") == []
    # Of two speeds the same recording is twice as long.
    slow = assemble(title, own_recording, "simulated", host_speed=0.5)
    assert slow.spans[-1].end_s == pytest.approx(2 * timeline.spans[-1].end_s)
