"""`tcbench timeline`, `explain` and `roofline` as a user meets them, on the records of a real run on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import factories
import pytest
from command import tcbench

from tcbench import backends
from tcbench.analysis.roofline import Ceilings
from tcbench.backends.feeds import generated
from tcbench.core import record as records
from tcbench.run import ceilings


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one cell was run."""
    here = tmp_path_factory.mktemp("run")
    generated.generate(here / "images", n_files=24, workers=1)
    run = ("run", "--config", "fp32", "--bs", "4", "--max-time", "1", "--image-size", "32", "--device", "cpu")
    done = tcbench(here, *run, "--data", "images", "--quiet")
    assert done.code == 0, done.err
    return here


def test_explain_says_what_holds_a_real_cell_back_and_what_is_next(ran: Path) -> None:
    done = tcbench(ran, "explain", "--details")
    assert done.code == 0, done.err
    assert "fp32, batch size 4: " in done.out
    assert "at most" in done.out
    value = json.loads(tcbench(ran, "explain", "--json").out)
    [cell] = value["cells"]
    found = cell["bottleneck"]
    assert found["verdict"] in ("input-bound", "host-bound", "balanced")
    assert found["sentence"].startswith(found["verdict"])
    needs = found["needs"]
    assert needs["host_s"] == pytest.approx(sum(p["host_s"] for p in found["phases"] if p["name"] != "io"))
    assert needs["input_s"] > 0
    assert needs["gpu_s"] is None
    assert found["io_overlap"] == 0
    dali = next(gain for gain in cell["gains"] if gain["added"] == ["dali"])
    assert found["images_per_s"] < dali["images_per_s_at_most"]
    assert {"static_graph"} < {rung for gain in cell["gains"] for rung in gain["added"]}
    assert not {"cuda_graph", "tf32"} & {rung for gain in cell["gains"] for rung in gain["added"]}  # GPUs' alone


def test_roofline_puts_a_real_cells_phases_under_measured_ceilings(ran: Path) -> None:
    done = tcbench(ran, "roofline", "--json", "-o", "roof.svg")
    assert done.code == 0, done.err
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
    kept = tcbench(ran, "explain", "--json")
    assert json.loads(kept.out)["arithmetic_bounded_by"] == cell["ceilings"]["says"]
    table = tcbench(ran, "roofline", "--layers", "--bs", "4")
    assert table.code == 0, table.err
    assert "block16.c/conv" in table.out
    assert (ran / "roofline.png").exists()


def test_timeline_draws_the_records_of_a_run(ran: Path) -> None:
    [records] = (ran / "results").rglob("*.jsonl")
    done = tcbench(ran, "timeline", str(records), "-o", "t.svg")
    assert done.code == 0, done.err
    assert done.out.strip() == "wrote t.svg"
    assert (ran / "t.svg").stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["timeline", "no.json"], "no.json: no such file"),
        (["timeline", "empty.json"], "empty.json: the file is empty"),
        (["timeline", "foreign.json"], "foreign.json"),
        (["timeline", "foreign.json", "--zoom", "5"], "--zoom 5: expected BEGIN:END in ms, e.g. --zoom 20:60"),
        (["timeline", "foreign.json", "--zoom", "a:b"], "--zoom a:b: expected BEGIN:END in ms"),
        (["timeline", "foreign.json", "--steps", "0"], "'--steps': Input should be greater than or equal to 1"),
        (["timeline", "foreign.json", "-o", "x.gif"], "x.gif: expected a file name that ends in .png, .svg, .pdf"),
        (["explain", "nowhere"], "nowhere: no such results; expected a file, a folder, or the id of a run"),
        (["explain"], "no results in results/; `tcbench run` makes some"),
        (["explain", "empty.json"], "empty.json: the file is empty"),
        (["explain", "foreign.jsonl"], "foreign.jsonl:1: not a tcbench record"),
        (["roofline"], "no results in results/; `tcbench run` makes some"),
        (["roofline", "foreign.jsonl"], "foreign.jsonl:1: not a tcbench record"),
        (["roofline", "foreign.json"], "timelines alone do not say what was trained"),
        (["roofline", "-o", "x.gif"], "x.gif: expected a file name that ends in"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(tmp_path: Path, arguments: list[str], expected: str) -> None:
    (tmp_path / "empty.json").touch()
    for name in ("foreign.json", "foreign.jsonl"):
        (tmp_path / name).write_text('{"a": 1}\n', encoding="utf-8")
    done = tcbench(tmp_path, *arguments)
    assert done.code == 2, (done.out, done.err)
    assert len(done.err.strip().splitlines()) == 1
    assert expected in done.err


@pytest.mark.parametrize("words", [("explain", "RECORDS", "--json"), ("report", "RECORDS", "-o", "page.html")])
@pytest.mark.parametrize("backend", ["evil.sub:f", "evil:f", "registered", "nobody"])
def test_what_a_record_names_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple, backend: str
) -> None:
    point = SimpleNamespace(name="registered", value="evil:f", load=lambda: pytest.fail("loaded"))
    monkeypatch.setattr(backends, "_registered", lambda: {"registered": point})
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/__init__.py").write_text("open('ran', 'w')", encoding="utf-8")
    cell = factories.make_cell("fp32", backend=backend)
    beside = factories.make_cell("fp32+mine", backend=backend)
    ours = factories.make_cell("fp16")
    lines = [records.encode(factories.make_record(cell=one)) for one in (cell, beside, ours)]
    (tmp_path / "r.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    done = tcbench(tmp_path, *(word.replace("RECORDS", "r.jsonl") for word in words))
    assert (done.code, done.err) == (0, "")
    assert not (tmp_path / "ran").exists()
    if words[0] == "explain":  # nor does it keep anything else of the file from being explained
        theirs, _, of_ours = json.loads(done.out)["cells"]
        assert [gain["added"] for gain in theirs["gains"]] == [["mine"]]
        assert ["dali"] in [gain["added"] for gain in of_ours["gains"]]


@pytest.mark.parametrize("change", [{"model": "vgg"}, {"variant": "v9"}, {"image_size": 1}])
def test_a_model_that_there_is_not_keeps_nothing_else_from_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict
) -> None:
    monkeypatch.setattr(ceilings, "_kept", lambda _: Ceilings("it", (("fp32", 1e11),), 1e10, True, "measured"))
    odd = records.encode(factories.make_record(cell=factories.make_cell("odd", **change))) + b"\n"
    (tmp_path / "odd.jsonl").write_bytes(odd)
    (tmp_path / "both.jsonl").write_bytes(odd + records.encode(factories.make_record("fp32")) + b"\n")
    for command, shown in (("explain", ["odd", "fp32"]), ("roofline", ["fp32"])):
        done = tcbench(tmp_path, command, "both.jsonl", "--json")
        assert [cell["config"] for cell in json.loads(done.out)["cells"]] == shown
    done = tcbench(tmp_path, "roofline", "odd.jsonl")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "nothing is known of the layers of " in done.err


@pytest.mark.parametrize("words", [("explain",), ("compare", "."), ("timeline",), ("history", "--out"), ("claims",)])
def test_a_name_that_no_file_system_takes_is_one_clear_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    name = "x" * 3_000
    done = tcbench(tmp_path, *words, name)
    assert (done.code, done.err) == (2, f"tcbench: error: {name}: File name too long\n")


def test_a_cell_that_is_not_there_is_one_clear_line(ran: Path) -> None:
    done = tcbench(ran, "roofline", "--bs", "64")
    assert done.code == 2
    assert "no measured cell to show here; there is fp32, batch size 4" in done.err
