"""`tcbench timeline`, `explain` and `roofline` as a user meets them, on the records of a real run on the CPU."""

import json
from pathlib import Path
from types import SimpleNamespace

import factories
import pytest
from command import next_steps, tcbench
from factories import make_record

from tcbench.commands.run import command as running
from tcbench.core.packages import Package
from tcbench.core.record import Cell
from tcbench.core.timeline import Span, Timeline
from tcbench.engine import backends
from tcbench.engine.accelerators.cuda import driver
from tcbench.run.plan import Plan
from tcbench.tracing import perfetto


@pytest.mark.parametrize("words", [("explain", "RECORDS", "--json"), ("report", "RECORDS", "-o", "page.html")])
@pytest.mark.parametrize("backend", ["evil.sub:f", "registered"])
def test_what_a_record_names_is_not_imported(tmp_path, monkeypatch, words, backend):
    point = SimpleNamespace(name="registered", value="evil:f", load=lambda: pytest.fail("loaded"))
    monkeypatch.setattr(backends, "_registered", lambda: {"registered": point})
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/__init__.py").write_text("open('ran', 'w')", encoding="utf-8")
    trials = [make_record(cell=factories.make_cell(config, backend=backend)) for config in ("fp32", "fp32+mine")]
    factories.write(tmp_path / "r.jsonl", *trials, make_record("fp16"))
    done = tcbench(tmp_path, *(word.replace("RECORDS", "r.jsonl") for word in words))
    assert (done.code, done.err) == (0, "")
    assert not (tmp_path / "ran").exists()
    if words[0] == "explain":  # nor does it keep anything else of the file from being explained
        of_theirs, _, of_ours = json.loads(done.out)["cells"]
        assert [gain["added"] for gain in of_theirs["gains"]] == [["mine"]]
        assert ["dali"] in [gain["added"] for gain in of_ours["gains"]]


@pytest.mark.parametrize("change", [{"model": "vgg"}, {"variant": "v9"}, {"image_size": 1}])
def test_a_model_that_there_is_not_keeps_nothing_else_from_being_shown(tmp_path, ceilings, change):
    odd = make_record(cell=factories.make_cell("odd", **change))
    factories.write(tmp_path / "odd.jsonl", odd)
    factories.write(tmp_path / "both.jsonl", odd, make_record("fp32"))
    for command, shown in (("explain", ["odd", "fp32"]), ("roofline", ["fp32"])):
        done = tcbench(tmp_path, command, "both.jsonl", "--json")
        assert [cell["config"] for cell in json.loads(done.out)["cells"]] == shown
    done = tcbench(tmp_path, "roofline", "odd.jsonl")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "the layers of " in done.err


def test_a_profile_alone_has_a_roofline_with_the_times_of_its_layers(tmp_path, ceilings):
    record = make_record("fp32", 4)
    layer = Span(0.01, 0.03, "host", "layer", "stem/conv", 0, "forward")
    spans = [Span(0.0, 0.1, "host", "step", "step 0", 0), Span(0.0, 0.05, "host", "phase", "forward", 0), layer]
    timeline = Timeline(record.cell.label, "cpu", "a CPU", 4, "ranges", ["forward"], spans)
    perfetto.write([timeline], tmp_path / "profile-fp32.json.gz", record)
    done = tcbench(tmp_path, "roofline", "profile-fp32.json.gz", "--json")
    assert (done.code, done.err) == (0, "")
    (cell,) = json.loads(done.out)["cells"]
    assert [cell["config"], cell["batch_size"]] == ["fp32", 4]
    timed = {layer["name"]: layer["time_s"] for layer in cell["layers"] if layer["time_s"]}
    assert timed == {"stem/conv": pytest.approx(0.02)}
    assert (tmp_path / "profile-fp32-roofline.png").exists()


def test_a_roofline_shows_the_base_and_the_fastest_unless_all_are_asked_for(tmp_path, ceilings):
    rates = {"fp32": 20, "fp32+dali": 30, "fp32+dali+batched": 40}
    factories.write(tmp_path / "r.jsonl", *(make_record(name, 4, images_per_s=rate) for name, rate in rates.items()))
    for words, shown in (("", ["fp32", "fp32+dali+batched"]), ("--all", list(rates))):
        done = tcbench(tmp_path, "roofline", "r.jsonl", *words.split(), "-o", "r.svg")
        assert (done.code, done.err) == (0, "")
        assert [word for word in done.out.split() if word.startswith("fp32") and word in rates] == shown
        assert ("--all shows all 3 cells" in done.out) is (words == "")
        assert ("dali, batch size 4" in " ".join((tmp_path / "r.svg").read_text("utf-8").split())) is (words == "--all")
    done = tcbench(tmp_path, "roofline", "r.jsonl", "--json")
    assert [cell["config"] for cell in json.loads(done.out)["cells"]] == list(rates)


@pytest.mark.parametrize("words", [("explain",), ("compare", "."), ("timeline",), ("history", "--out"), ("claims",)])
def test_a_name_that_no_file_system_takes_is_one_clear_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    name = "x" * 3_000
    done = tcbench(tmp_path, *words, name)
    assert (done.code, done.err) == (2, f"tcbench: error: {name}: File name too long\n")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "resnet18", "image_size": 32, "seed": 7},
        {"scenario": "naruse2018", "device": "virtual:V100", "model": "resnet18", "image_size": 64, "host_speed": 2.0},
    ],
)
def test_the_next_steps_are_in_the_cells_own_setting(tmp_path, monkeypatch, changes):
    cell = factories.make_cell("fp32", **changes)
    factories.write(tmp_path / "mine" / "run.jsonl", make_record(cell=cell))
    done = tcbench(tmp_path, "explain", "--out", "mine", "--quiet")
    run, profile, report = next_steps(done)
    assert (profile, report) == (["profile", "fp32", cell.scenario, *run[4:]], ["report", "--out", "mine"])
    plans: list[Plan] = []
    monkeypatch.setattr(running, "_show_plan", lambda plan, *_: plans.append(plan))
    monkeypatch.setattr(Package, "is_installed", lambda _: True)  # it plans only
    assert tcbench(tmp_path, *run, "--dry-run").code == 0
    [planned] = [planned.cell for plan in plans for planned in plan.cells]
    assert f"+ {planned.config.removeprefix('fp32+')}" in done.out
    names = ("scenario", "device", "batch_size", *changes)
    assert [getattr(planned, name) for name in names] == [getattr(cell, name) for name in names]
    profiled: list[Cell] = []
    with_progress = "tcbench.commands.profile.command._with_progress"
    monkeypatch.setattr(with_progress, lambda _, __, record, ___: profiled.append(record.cell))
    tcbench(tmp_path, *profile)  # which ends where it is to run
    assert [getattr(profiled[0], name) for name in names] == [getattr(cell, name) for name in names]


@pytest.mark.parametrize(("device", "where"), [("cpu", "Next"), ("virtual:V100", "Next"), ("cuda:0", "On a-gpu")])
def test_what_wants_a_device_that_is_not_here_is_offered_for_the_machine_of_the_results(
    tmp_path, monkeypatch, device, where
):
    monkeypatch.setattr(driver, "gpus", lambda: driver.Gpus(problem="none here"))
    cell = factories.make_cell("fp32", device=device)
    environment = factories.make_environment("a-gpu")
    factories.write(tmp_path / "run.jsonl", make_record(cell=cell, environment=environment))
    for command, commands in (("explain", ["run cpu", "profile fp32"]), ("claims", ["run cpu"])):
        lines = tcbench(tmp_path, command, "run.jsonl").out.splitlines()
        begun = [line for line in lines if line.startswith((f"{where}: tcbench run", f"{where}: tcbench profile"))]
        assert [" ".join(line.split(": ")[1].split()[1:3]) for line in begun][: len(commands)] == commands
