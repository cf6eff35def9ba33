"""A rehearsal times the launches of the step itself, on memory of the same shape."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from factories import make_cell

from tcbench.core.record import Cell, Input
from tcbench.core.step_time import StepTime
from tcbench.engine.accelerators.cpu import heap
from tcbench.engine.accelerators.device import kind_of
from tcbench.engine.backends import backend
from tcbench.engine.feeds import generated
from tcbench.engine.feeds.synthetic import make_synthetic_feed
from tcbench.engine.measure import rehearsal
from tcbench.engine.measure.rehearsal import ObservedAccelerator, Rehearsals
from tcbench.engine.session import Phase, Session
from tcbench.engine.work import Operand, Work

pytestmark = pytest.mark.usefixtures("thin_network")

BEST = "fp32+batched+nhwc+fused+static_graph"


def cell_of(config: str = "fp32", **changes: Any) -> Cell:
    fields = {"batch_size": 2, "threads": 2, "input": Input(kind="synthetic")} | changes
    return make_cell(config, model="thin", image_size=32, **fields)


def observed(monkeypatch: pytest.MonkeyPatch, cell: Cell) -> list[list[str]]:
    """Return the works of each pass over a cell's step, launched or not."""
    seen: list[list[str]] = []

    class RecordingLaunch(rehearsal.TimedLaunch):
        def __call__(self, launch: Callable[[], None], work: Work, arrays: tuple[Any, ...]) -> None:
            seen[-1].append(work.key)
            super().__call__(launch, work, arrays)

    monkeypatch.setattr(rehearsal, "TimedLaunch", RecordingLaunch)
    monkeypatch.setattr(rehearsal, "passes", lambda _: (seen.append([]) or number for number in range(2)))
    seen.append([])
    Rehearsals().rehearse(cell)
    return seen


@pytest.mark.parametrize("config", ["fp32", BEST, "fp16+batched"])
def test_it_launches_what_the_step_itself_launches_in_its_order(monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    cell = cell_of(config)
    site = kind_of("cpu").open("cpu", cell.cudnn, cell.threads)
    launched: list[str] = []
    prepare = site.accelerator.prepare

    def prepared(work: Work, *arrays: Any) -> Callable[[], None]:
        run = prepare(work, *arrays)
        return lambda: (launched.append(work.key), run())[1]

    site.accelerator.prepare = prepared  # type: ignore[method-assign]
    session = backend("chainer").open_on(cell, site, make_synthetic_feed)
    for _ in range(4):
        launched.clear()
        for phase in session.phases:
            phase.run()
    session.close()
    settling, *passes = observed(monkeypatch, cell)
    assert passes == [launched] * 2
    assert len(launched) > 30
    assert len(settling) >= len(launched)  # what a first launch makes is made


def test_it_trains_the_network_that_it_times() -> None:
    """Numbers decide how fast work on them is: zeros are quick."""
    cell = cell_of(BEST)
    losses = []
    watch = rehearsal.TimedLaunch.__call__

    def call(self: Any, launch: Callable[[], None], work: Work, arrays: tuple[Any, ...]) -> None:
        watch(self, launch, work, arrays)
        if work.name == "mean_loss":
            losses.append(float(arrays[-1].reshape(-1)[0]))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rehearsal.TimedLaunch, "__call__", call)
        Rehearsals().rehearse(cell)
    assert np.isfinite(losses).all() and len(set(losses)) == len(losses) > rehearsal.PASSES


def test_what_was_timed_is_written_over_and_not_launched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    several = Rehearsals()
    several.rehearse(cell_of())
    launched: list[str] = []
    watch = rehearsal.TimedLaunch.__call__

    def call(self: Any, launch: Callable[[], None], work: Work, arrays: tuple[Any, ...]) -> None:
        launched.append(work.name)
        watch(self, launch, work, arrays)

    monkeypatch.setattr(rehearsal.TimedLaunch, "__call__", call)
    monkeypatch.setattr(rehearsal, "SETTLING_STEPS", 2)
    several.rehearse(cell_of(seed=1))
    once = len(launched)
    several.rehearse(cell_of("fp32+batched"))
    again = launched[once:]
    assert launched[:once].count("mean_loss") == 1  # the first of the settling steps
    assert again.count("mean_loss") == 1 and again.count("batched_update") > rehearsal.PASSES


def test_the_program_is_timed_beside_launches_that_write_over_their_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writing takes a second by this clock, and pages that are new to the process a quarter of one more."""
    clock = [0.0]
    monkeypatch.setattr(rehearsal.time, "perf_counter", lambda: clock[0])

    class Memory:
        def __init__(self, nbytes: int) -> None:
            self.nbytes, self.pages = nbytes, 0.25

        def fill(self, value: int) -> None:
            assert value == 0
            clock[0] += 1 + self.pages
            self.pages = 0.0

    class FakeWork:
        key = "told"
        operands = tuple(Operand(name, (1,), dtype, "out") for name, dtype in (("x", "float32"), ("table", "int64")))

    accelerator = ObservedAccelerator(kind_of("cpu").open("cpu", cell_of().cudnn, 1).accelerator, 1)

    def step() -> None:
        for nbytes in (heap.LARGEST_FROM_HEAP, heap.LARGEST_FROM_HEAP + 1):
            accelerator.on_launch(lambda: None, FakeWork(), (Memory(nbytes), np.zeros(1000)))  # type: ignore[arg-type]
        clock[0] += 10

    phases = [Phase("forward", step)]
    times = Rehearsals(device_s={rehearsal.launches(phases[0], accelerator): 3.0})
    assert times._step(phases, accelerator) == (3.0, 10.25)


def test_launches_that_are_bound_anew_are_not_those_that_are_made_again() -> None:
    """After the program that binds them, they find fewer of their operands in the caches."""
    several = Rehearsals()
    rungs = "fp32+batched+nhwc+fused"
    several.rehearse(cell_of(rungs))
    before = len(several.device_s)
    several.rehearse(cell_of(f"{rungs}+static_graph"))
    assert len(several.device_s) > before
    assert {key[0] for key in [*several.device_s][before:]} <= {key[0] for key in [*several.device_s][:before]}  # type: ignore[index]


@pytest.mark.parametrize(("spent_s", "number"), [(0.0, rehearsal.PASSES + 1), (7.5, 8)])
def test_passes_go_on_until_they_are_enough_and_took_their_time(
    monkeypatch: pytest.MonkeyPatch, spent_s: float, number: int
) -> None:
    clock = [0.0]
    monkeypatch.setattr(rehearsal.time, "perf_counter", lambda: clock[0])
    for seen in rehearsal.passes(spent_s):
        clock[0] = seen + 1.0
    assert clock[0] == number


def test_no_garbage_of_what_was_built_is_looked_for_in_steps_that_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    passes = rehearsal.passes
    monkeypatch.setattr(rehearsal, "passes", lambda s: (frozen.append(gc.get_freeze_count()) or n for n in passes(s)))
    Rehearsals().rehearse(cell_of())
    assert min(frozen) > 0 == gc.get_freeze_count()


def test_cells_share_the_time_of_their_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(Rehearsals, "rehearse", lambda self, _: seen.append(self.spent_s))
    assert [*rehearsal.answers([cell_of()] * 3)] and [*rehearsal.answers([cell_of()])]
    assert seen == [pytest.approx(seen[-1] / 3)] * 3 + [rehearsal.SPENT_S]


def test_what_cells_have_in_common_is_timed_once() -> None:
    several = Rehearsals()
    base, synthetic = several.rehearse(cell_of()), several.rehearse(cell_of(seed=1))
    assert base.device_s == synthetic.device_s
    batched = several.rehearse(cell_of("fp32+batched"))
    assert batched.device_s != base.device_s
    assert len(several.device_s) == 5  # forward, backward, two updates, and a phase that launches nothing


def test_a_feed_of_images_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(generated.generate, "__kwdefaults__", {"n_files": 4, "progress": None, "workers": 1})
    parts = Rehearsals().rehearse(msgspec.structs.replace(cell_of(), input=Input(kind="generated")))
    assert parts.input_s > 1e-4 and not parts.overlapped
    assert Rehearsals().rehearse(cell_of()).input_s == 0.0


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ImportError("No module named 'cv2'"), "No module named 'cv2'"),
        (
            MemoryError("Unable to allocate 1 TiB"),
            "batch size 3 does not fit into this machine's memory; use fewer images (--bs) or smaller ones "
            "(--image-size)",
        ),
    ],
)
def test_what_cannot_be_rehearsed_says_why_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    def opened(cell_backend: object, cell: Cell, *rest: Any) -> Session:
        if cell.batch_size == 3:
            raise error
        return open_session(cell_backend, cell, *rest)

    open_session = rehearsal._open_session
    monkeypatch.setattr(rehearsal, "_open_session", opened)
    cells = [cell_of("fp32", backend="torch"), cell_of(batch_size=3), cell_of()]
    torch_reason, failed, predicted = rehearsal.answers(cells)
    assert isinstance(torch_reason, str) and "PyTorch" in torch_reason
    assert failed == says
    assert isinstance(predicted, StepTime) and predicted.step_s > 0
