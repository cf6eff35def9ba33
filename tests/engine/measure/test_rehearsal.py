"""What a rehearsal tells of a step is what the step itself launches, on memory of the same shape."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from factories import make_cell

from tcbench.core.record import Cell, Input
from tcbench.core.session import Phase
from tcbench.core.step_time import StepTime
from tcbench.engine.accelerators.cpu import heap
from tcbench.engine.accelerators.device import kind_of
from tcbench.engine.backends import backend
from tcbench.engine.feeds import generated
from tcbench.engine.feeds.synthetic import make_synthetic_feed
from tcbench.engine.measure import rehearsal
from tcbench.engine.measure.rehearsal import BoundOnly, LoggedLaunch, OperandPlace, Rehearsals, StepMemory
from tcbench.engine.work import Operand, Work

pytestmark = pytest.mark.usefixtures("thin_network")

BEST = "fp32+batched+nhwc+fused+static_graph"


def cell_of(config: str = "fp32", **changes: Any) -> Cell:
    return make_cell(config, 2, model="thin", image_size=32, threads=2, input=Input(kind="synthetic"), **changes)


def logged(monkeypatch: pytest.MonkeyPatch, cell: Cell) -> list[LoggedLaunch]:
    """The launches that a rehearsal makes."""
    seen: list[LoggedLaunch] = []

    def launches_s(site: Any, log: list[LoggedLaunch]) -> list[float]:
        seen.extend(log)
        return [1.0] * len(log)

    monkeypatch.setattr(rehearsal, "launches_s", launches_s)
    Rehearsals().of(cell)
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
    assert [launch.work.key for launch in logged(monkeypatch, cell)] == launched
    assert len(launched) > 30


def test_its_launches_can_be_made_again_and_change_nothing_but_their_own_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = rehearsal.launches_s
    cell = cell_of(BEST)
    log = logged(monkeypatch, cell)
    site = kind_of("cpu").open("cpu", cell.cudnn, cell.threads)
    times_s = timed(site, log)
    assert len(times_s) == len(log) and min(times_s) > 0
    # A convolution takes longer than an update of its filter: it is not the launching that was timed.
    names = [launch.work.name for launch in log]
    assert times_s[names.index("conv_fprop")] > 1e-6


def test_memory_is_shared_as_it_was_and_addresses_in_tables_follow() -> None:
    block = np.zeros(100, np.float32)
    table = np.array([[block.ctypes.data + 40, 0]], np.int64)
    operands = [Operand("a", (10,), "float32", "in"), Operand("b", (5,), "float32", "out")]
    views = [block[5:15], block[10:15]]
    places = tuple(map(OperandPlace.of, operands, views))
    told = OperandPlace.of(Operand("table", (1, 2), "int64", "in"), table)

    class Told:
        name = "told"

        def __init__(self, *names: Operand) -> None:
            self.operands = names

    first = LoggedLaunch(Told(*operands), places)  # type: ignore[arg-type]
    second = LoggedLaunch(Told(Operand("table", (1, 2), "int64", "in")), (told,))  # type: ignore[arg-type]
    memory = StepMemory([first, second])
    a, b = memory.operands(first)
    a[5:10] = 7
    assert b.tolist() == [7.0] * 5 and not np.shares_memory(a, block)
    [moved] = memory.operands(second)
    assert moved[0].tolist() == [b.ctypes.data, 0]
    assert told.contents is not None and told.contents[0, 0] == table[0, 0]  # as it was told


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

    class Told:
        operands = tuple(Operand(name, (1,), dtype, "out") for name, dtype in (("x", "float32"), ("table", "int64")))

    accelerator = BoundOnly(kind_of("cpu").open("cpu", cell_of().cudnn, 1).accelerator, 1)

    def step() -> None:
        for nbytes in (heap.LARGEST_FROM_HEAP, heap.LARGEST_FROM_HEAP + 1):
            accelerator.instead(Told(), (Memory(nbytes), np.zeros(1000)))  # type: ignore[arg-type]
        clock[0] += 10

    assert rehearsal._host_s([Phase("forward", step)], accelerator) == 10.25


def test_what_cells_have_in_common_is_timed_once() -> None:
    several = Rehearsals()
    base, synthetic = several.of(cell_of()), several.of(cell_of(seed=1))
    assert base.device_s == synthetic.device_s
    batched = several.of(cell_of("fp32+batched"))
    assert batched.device_s != base.device_s
    assert len(several.device_s) == 5  # forward, backward, two updates, and a phase that launches nothing


def test_a_feed_of_images_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(generated.generate, "__kwdefaults__", {"n_files": 4, "progress": None, "workers": 1})
    parts = Rehearsals().of(msgspec.structs.replace(cell_of(), input=Input(kind="generated")))
    assert parts.input_s > 1e-4 and not parts.overlapped
    assert Rehearsals().of(cell_of()).input_s == 0.0


def test_what_cannot_be_rehearsed_says_why_and_leaves_the_others_alone() -> None:
    told, not_told = rehearsal.answers([cell_of(), cell_of("fp32", backend="torch")])
    assert isinstance(told, StepTime) and told.step_s > 0
    assert isinstance(not_told, str) and "PyTorch" in not_told
