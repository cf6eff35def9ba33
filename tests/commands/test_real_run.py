"""One real run of ResNet-18, and what each command makes of it: the run itself, charts, `explain`, `roofline`."""

import json
from pathlib import Path

import pytest
from command import Done, ended, tcbench

from tcbench.commands.forecast import forecast
from tcbench.core import store

pytestmark = pytest.mark.long

RUN = ("run", "--config", "fp32,fp32+batched", "--bs", "2", "--image-size", "32", "--max-time", "0.3", "--trials", "1")
RUN += ("--device", "cpu", "--threads", "1", "--data", "images", "--model", "resnet18")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, images: Path) -> tuple[Path, Done]:
    """A folder in which two cells were run, and what was shown."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "images").symlink_to(images)
    return folder, tcbench(folder, *RUN)


@pytest.fixture
def ran(run: tuple[Path, Done], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the run's folder, where `explain` traces steps too."""
    monkeypatch.setattr(forecast, "PROCESSES", 1)
    return run[0]


def test_a_run_leaves_records_a_chart_a_table_and_the_next_step(run: tuple[Path, Done]) -> None:
    folder, done = run
    assert done.code == 0, done.err
    (path,) = (folder / "results").glob("*/cpu-*.jsonl")
    records = store.read([path]).records
    assert [(r.cell.config, r.status) for r in records] == [("fp32", "ok"), ("fp32+batched", "ok")]
    for record in records:
        measured = record.measurement
        assert measured is not None and record.environment is not None
        assert len(measured.counted_times_s) >= 3
        assert measured.warmup_steps >= 1
        assert record.host is not None and record.host.elapsed_s > 0  # what others had of the processors meanwhile
        assert measured.profiled_steps == len(measured.counted_times_s)  # which tell the phases
        assert [phase.name for phase in measured.phases] == ["io", "forward", "backward", "update"]
        assert record.environment.packages["chainer"] == "7.8.1"
        assert measured.phases[0].host_s[0] > 1e-4  # real images were decoded
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    shown = ("images/s", "vs fp32", "1.00×", "trials", "memory", "2 cells ok", str(path.relative_to(folder)), "Next: ")
    assert all(words in done.out for words in shown)
    assert "[1/2] fp32, batch size 2: " in done.err
    assert "ETA" in done.err


def test_a_run_that_is_whole_is_not_resumed(ran: Path) -> None:
    again = tcbench(ran, *RUN, "--resume", "--allow", "code", "--json")  # who works on tcbench commits meanwhile
    assert again.code == 0
    assert "nothing is missing" in again.err
    summary = json.loads(again.out)
    assert summary["schema_version"] == 1
    assert [cell["status"] for cell in summary["cells"]] == ["ok", "ok"]
    [path] = (ran / "results").rglob("*.jsonl")
    assert len(store.read([path]).records) == 2


def test_explain_says_what_holds_a_real_cell_back_and_what_is_next(ran: Path) -> None:
    done = ended(ran, "explain", "--details")
    assert "fp32, batch size 2: " in done.out
    assert "expected" in done.out
    value = json.loads(tcbench(ran, "explain", "--json").out)
    [cell, _] = value["cells"]
    bottleneck = cell["bottleneck"]
    assert bottleneck["verdict"] in ("input-bound", "host-bound", "balanced")
    assert bottleneck["sentence"].startswith(("compute-bound: ", "update ", bottleneck["verdict"]))
    needs = bottleneck["needs"]
    assert needs["host_s"] == pytest.approx(sum(p["host_s"] for p in bottleneck["phases"] if p["name"] != "io"))
    assert needs["input_s"] > 0
    assert needs["gpu_s"] is None
    assert bottleneck["io_overlap"] == 0
    assert {"dali", "static_graph"} < {rung for gain in cell["gains"] for rung in gain["added"]}
    assert not {"cuda_graph", "tf32"} & {rung for gain in cell["gains"] for rung in gain["added"]}  # GPUs' alone


@pytest.mark.slow
def test_roofline_puts_a_real_cells_phases_under_measured_ceilings(ran: Path) -> None:
    done = ended(ran, "roofline", "--config", "fp32", "--json", "-o", "roof.svg")
    assert (ran / "roof.svg").stat().st_size > 5000
    [cell] = json.loads(done.out)["cells"]
    assert cell["ceilings"]["measured"]
    assert cell["ceilings"]["flops_s"]["fp32"] > 1e9
    phases = {phase["name"]: phase for phase in cell["phases"]}
    assert list(phases) == ["forward", "backward", "update"]
    for phase in phases.values():
        assert phase["flops_s"] == pytest.approx(phase["flops"] / phase["time_s"])
    # Backward does twice forward's arithmetic, but for the images' gradient.
    assert 1.9 < phases["backward"]["flops"] / phases["forward"]["flops"] < 2.0
    table = ended(ran, "roofline", "--layers", "--bs", "2")
    assert "block8.b/conv" in table.out
    assert list(ran.glob("results/*/*-roofline.png"))
