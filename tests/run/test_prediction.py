"""Parts of steps: told by a process, kept, and asked for where they tell something."""

import platform
from pathlib import Path

import msgspec
import pytest
from factories import make_cell, make_environment, make_measurement, make_phases, make_record

from tcbench.core.packages import Package
from tcbench.core.record import Cell, Input, Record
from tcbench.core.step_time import StepTime
from tcbench.engine.accelerators.device import host_device
from tcbench.hardware import gpus
from tcbench.run import prediction

PARTS = StepTime(device_s=0.5, host_s=0.1, on_host=True)


def silent(*_: object) -> None:
    pass


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Cell]:
    """The cells that were rehearsed, none of them really; none is kept at first."""
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    cells: list[Cell] = []

    def rehearsed(some: list[Cell]) -> object:
        for cell in some:
            cells.append(cell)
            yield cell, "no" if "kfac" in cell.rungs else PARTS

    monkeypatch.setattr(prediction, "_rehearsed", rehearsed)
    monkeypatch.setattr(prediction, "advisable", lambda _: lambda _: None)  # whatever this machine's processor lacks
    monkeypatch.setattr(Package, "is_installed", lambda _: True)  # and whatever this environment does
    return cells


def test_parts_are_cached_and_reasons_are_not(rehearsed: list[Cell]) -> None:
    cells = [make_cell("fp32"), make_cell("fp32+kfac"), make_cell("fp32", 8)]
    seen: list[tuple[int, int]] = []
    answers = prediction.predict(cells, fresh=False, progress=lambda _, done, total: seen.append((done, total)))
    assert answers == {cells[0]: PARTS, cells[1]: "no", cells[2]: PARTS}
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert prediction.cached_parts(cells) == {cells[0]: PARTS, cells[2]: PARTS}
    prediction.predict(cells, fresh=False, progress=silent)
    assert rehearsed == [*cells, cells[1]]
    prediction.predict(cells[:1], fresh=True, progress=silent)
    assert rehearsed[4:] == cells[:1]
    other = make_cell("fp32", scenario="another", seed=7)
    assert prediction.cached_parts([other]) and not prediction.cached_parts([make_cell("fp32", 8, threads=1)])


def test_what_was_timed_on_a_busy_machine_is_told_as_such_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, rehearsed: list[Cell], caplog: pytest.LogCaptureFixture
) -> None:
    quiet, busy = make_cell("fp32"), make_cell("fp32", 8)
    slow = StepTime(device_s=2.0, on_host=True, lost=0.4)
    monkeypatch.setattr(prediction, "_rehearsed", lambda _: iter([(quiet, PARTS), (busy, slow)]))
    assert prediction.predict([quiet, busy], fresh=False, progress=silent) == {quiet: PARTS, busy: slow}
    assert prediction.cached_parts([quiet, busy]) == {quiet: PARTS}
    assert "other processes used up to 40% of the processor time while 1 of 2 steps were timed" in caplog.text


def test_cells_are_rehearsed_in_a_process_and_its_death_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell("fp32", 1, model="resnet18", image_size=32, threads=1, input=Input(kind="synthetic"))
    torch = make_cell("fp32", 1, backend="torch", threads=1)
    answers = prediction.predict([cell, torch], fresh=False, progress=silent)
    assert isinstance(answers[cell], StepTime) and answers[cell].step_s > 0
    assert "PyTorch" in str(answers[torch])
    monkeypatch.setattr(prediction.sys, "executable", "/bin/false")
    other = make_cell("fp32", 2, threads=1)
    assert "exit code 1" in str(prediction.predict([other], fresh=False, progress=silent)[other])


def record(config: str, step_s: float, *, local: bool = True) -> Record:
    facts = {
        "kernel": platform.release(),
        "memory_bytes": prediction.machine.memory_bytes(),
        "commit": prediction.machine.commit(),
        "sources": prediction.machine.sources(),
    }
    environment = make_environment(host_device().machine, **(facts if local else {}))
    measurement = make_measurement([step_s] * 12, phases=make_phases({"forward": step_s}))
    return make_record(cell=make_cell(config, 8), measurement=measurement, environment=environment)


def explained_with(records: list[Record], processes: int = 1) -> object:
    return prediction.explain_with_predictions(records, processes=processes, progress=silent)


def test_only_cells_without_a_faster_measured_config_are_rehearsed(rehearsed: list[Cell]) -> None:
    records = [record("fp32", 1.0), record("fp32+dali", 0.5)]
    base, dali = explained_with(records)
    assert base.advice.added == ("dali",) and base.advice.ratio
    assert ("fp32", "dali") in {cell.rungs for cell in rehearsed}
    assert all("dali" in cell.rungs for cell in rehearsed)  # of the base a faster config is known
    assert {gain.expected.value for gain in dali.gains} == {16.0}  # all alike: in proportion to what was measured
    assert dali.advice is None  # of which nothing is expected to bring anything
    rehearsed.clear()
    explained_with([record("fp32", 1.0)], processes=0)
    assert rehearsed == []


def test_a_measured_cell_is_rehearsed_with_its_new_candidates_only(rehearsed: list[Cell]) -> None:
    """Parts of an earlier call are of another load than those of this one."""
    base = record("fp32", 1.0)
    prediction.predict([base.cell], fresh=False, progress=silent)
    rehearsed.clear()
    explained_with([base])
    assert rehearsed[0] == base.cell and len(rehearsed) > 1
    rehearsed.clear()
    explained_with([base])
    assert [cell for cell in rehearsed if "kfac" not in cell.rungs] == []


def test_a_config_whose_package_is_not_installed_is_not_rehearsed(
    rehearsed: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Package, "is_installed", lambda package: package.module != "cv2")
    (cell,) = explained_with([record("fp32", 1.0)])
    assert rehearsed and not any("opencv" in cell.rungs for cell in rehearsed)
    assert {gain.expected is None for gain in cell.gains if "opencv" in gain.rungs} == {True}


@pytest.mark.parametrize("name", ["gone", "gone:step", "my_step:open_session"])
def test_a_step_of_the_users_own_is_neither_looked_for_nor_imported(
    rehearsed: list[Cell], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """A record names it, and whoever wrote that chose what would run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_step.py").write_text("raise SystemExit('imported')", "utf-8")
    own_step = record("fp32", 1.0)
    own_step = msgspec.structs.replace(own_step, cell=msgspec.structs.replace(own_step.cell, backend=name))
    explained_with([own_step])
    assert rehearsed == []
    assert prediction.cached_parts([own_step.cell]) == {}


def test_parts_depend_on_installed_versions(rehearsed: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell("fp32")
    prediction.predict([cell], fresh=False, progress=silent)
    prediction._versions.cache_clear()
    monkeypatch.setattr(prediction.machine, "versions", lambda _: {"numpy": "3.0"})
    assert not prediction.cached_parts([cell])
    prediction._versions.cache_clear()


def test_results_of_another_machine_or_other_code_are_not_rehearsed(rehearsed: list[Cell]) -> None:
    (cell,) = explained_with([record("fp32", 1.0, local=False)])
    assert rehearsed == [] and all(gain.expected is None for gain in cell.gains)


def test_a_gpus_parts_come_from_the_table() -> None:
    cells = [
        make_cell(f"fp16+batched+nhwc+fused{more}", 8, device="cuda:0", image_size=32, model="resnet18")
        for more in ("", "+static_graph", "+cuda_graph")
    ]
    v100 = gpus.load("V100")
    parts = prediction.by_table(cells, v100, processes=1, progress=silent)
    plain, static, graph = (parts[cell] for cell in cells)
    assert plain.device_s == pytest.approx(static.device_s) == pytest.approx(graph.device_s)
    assert plain.host_s > 3 * static.host_s > 3 * graph.host_s > 0
    assert prediction.by_table(cells, v100, processes=0, progress=silent) == parts
