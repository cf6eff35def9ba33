"""Every command on a step of the user's own: none ends in an internal error, none speaks of ResNet-50's rungs."""

import json
import re
from pathlib import Path

import factories
import pytest
import typer
from command import ended, tcbench
from factories import make_cell, make_environment, make_measurement, make_record

from tcbench.commands import app
from tcbench.core import record as records
from tcbench.core.record import Input, PhaseTimes
from tcbench.engine.accelerators.ceilings import Ceilings

STEP = """
def open_session(cell):
    raise AssertionError("nothing here builds a session")
"""

SCENARIO = """
schema = 1
title = "An MLP"
unit = "samples"
base = "plain+inplace"

[measure]
batch_sizes = [16, 64]

[[config]]
backend = "my_step:open_session"
rungs = ["plain"]

[[config]]
backend = "my_step:open_session"
rungs = ["plain", "inplace"]
"""
"""A scenario without `model.name`: its older records have resnet50's name, as those here do."""

RUN = "results/a-machine/my_step-20260101-000000.jsonl"
EARLIER = "earlier.jsonl"
FIGURE = ("-o", "figure.png")

COMMANDS: dict[str, list[tuple[tuple[str, ...], int]]] = {
    "run": [(("./my_step.toml", "--dry-run"), 0), (("./my_step.toml", "--dry-run", "--config", "inplace"), 2)],
    "submit": [(("./my_step.toml", "--dry-run", "--partition", "p"), 2)],
    "profile": [(("nothing/plain", "./my_step.toml"), 2)],
    "forecast": [(("./my_step.toml", "--gpu", "V100"), 2)],
    "plot": [
        ((RUN, *FIGURE), 0),
        ((RUN, "--kind", "ladder", *FIGURE), 0),
        ((RUN, "--by", "machine", *FIGURE), 0),
        ((RUN, "--slide", "33", *FIGURE), 2),
        ((RUN, "--kind", "scaling", *FIGURE), 2),
    ],
    "timeline": [((RUN, *FIGURE), 0)],
    "explain": [((RUN, "--details"), 0), ((RUN, "--json"), 0)],
    "claims": [((RUN,), 2), ((RUN, "--scenario", "./my_step.toml"), 0)],
    "report": [((RUN, "-o", "report.html", "--compare", EARLIER), 0)],
    "compare": [((EARLIER, RUN, "--format", form), 0) for form in ("json", "junit")],
    "diff": [((RUN, RUN), 0)],
    "gate": [(("./my_step.toml", "--base", "nothing"), 2)],
    "export": [((RUN,), 0)],
    "roofline": [((RUN, *FIGURE), 2)],
    "numerics": [(("my_step/plain",), 2)],
    "baseline": [(("set", "main", RUN), 0), (("list",), 0), (("show", "main"), 0), (("remove", "main"), 0)],
    "history": [((), 2), (("results", *FIGURE), 0)],
    "list": [((), 0)],
    "doctor": [],  # looks at the machine alone
    "data": [],  # makes JPEGs
}
"""Arguments and exit codes by command."""


def record(config: str, batch_size: int, trial: int) -> records.Record:
    step_s = {"plain": 0.02, "plain+inplace": 0.015}[config] * batch_size / 16
    shares = {"fetch": 0.1, "attend": 0.6, "sharpen": 0.3}
    phases = tuple(PhaseTimes(name=name, host_s=(share * step_s,) * 3) for name, share in shares.items())
    cell = make_cell(
        f"my_step/{config}",
        batch_size,
        backend="my_step:open_session",
        rungs=tuple(config.split("+")),
        scenario="my_step",
        input=Input(kind="own"),
        image_size=224,
        unit="samples",
        base="my_step/plain+inplace",
    )
    times_s = [step_s * (1 + 0.001 * ((7 * k + trial) % 5)) for k in range(12)]
    measurement = make_measurement(times_s, phases=phases, macs_per_image=0, prefetch_depth=0)
    environment = make_environment("a-machine", commit="a1b2c3d", project_commit="f00dfeedbeef")
    return make_record(cell=cell, measurement=measurement, environment=environment, trial=trial)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The step, its scenario, and the records of its run."""
    root = tmp_path_factory.mktemp("own")
    (root / "my_step.py").write_text(STEP, "utf-8")
    (root / "my_step.toml").write_text(SCENARIO, "utf-8")
    cells = [(config, size) for config in ("plain", "plain+inplace") for size in (16, 64)]
    for path, trials in ((RUN, (0, 1)), (EARLIER, (2, 3))):
        factories.write(root / path, *(record(*cell, trial) for trial in trials for cell in cells))
    return root


def test_the_table_names_every_command() -> None:
    assert set(COMMANDS) == set(typer.main.get_command(app).commands)


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "words", "code"),
    [(command, words, code) for command, calls in COMMANDS.items() for words, code in calls],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_no_command_ends_in_an_internal_error(folder: Path, command: str, words: tuple[str, ...], code: int) -> None:
    done = tcbench(folder, command, *words)
    assert done.code == code, done.err + done.out
    assert "internal error" not in done.err
    if code:
        assert done.err.strip().count("\n") == 0


@pytest.mark.parametrize(
    "words",
    [
        ("explain", RUN, "--details"),
        ("compare", EARLIER, RUN),
        ("compare", EARLIER, RUN, "--format", "markdown"),
        ("history", "results"),
        ("export", RUN, "--format", "github-action-benchmark"),
    ],
    ids=lambda words: " ".join(words),
)
def test_what_is_counted_bears_the_scenarios_unit(folder: Path, words: tuple[str, ...]) -> None:
    out = ended(folder, *words).out
    assert "samples/s" in out
    assert "images" not in out.replace("images_per_s", "")


FOREIGN = re.compile(r"\bv1\b|classes|\b224\b|learning rate|loss scale|image(?!s[_-]per)", re.IGNORECASE)
"""Facts about networks that train on images, which are unknown for a user's own step."""


def test_the_page_bears_the_unit_and_the_base(folder: Path) -> None:
    ended(folder, "report", RUN, "-o", "page.html")
    page = re.sub(r"<(script|style)\b.*?</\1>", "", (folder / "page.html").read_text("utf-8"), flags=re.DOTALL)
    assert "samples/s" in page and "Samples per second" in page
    assert "vs my_step/plain+inplace" in page
    assert "images/s" not in page and "Images per second" not in page
    assert not FOREIGN.findall(re.sub(r"<[^>]*>", "\n", page))


def test_no_field_of_a_network_stands_on_somebody_elses_step(folder: Path) -> None:
    for form in ("github-action-benchmark", "bencher"):
        assert not FOREIGN.findall(ended(folder, "export", RUN, "--format", form).out)
    for per in ("trial", "cell", "step"):
        [row, *_] = json.loads(ended(folder, "export", RUN, "--format", "json", "--per", per).out)["rows"]
        assert (row["image_size"], row["variant"]) == (None, None)
    assert json.loads(ended(folder, "explain", RUN, "--json").out)["cells"][0]["image_size"] is None


@pytest.mark.usefixtures("ceilings")
def test_advice_comes_of_the_steps_own_rungs_alone(folder: Path) -> None:
    cells = json.loads(ended(folder, "explain", RUN, "--json").out)["cells"]
    assert [(cell["bottleneck"]["dominant_phase"], cell["unit"]) for cell in cells] == [("attend", "samples")] * 4
    by_config = {(cell["config"], cell["batch_size"]): cell for cell in cells}
    plain = by_config["my_step/plain", 16]
    assert [gain["added"] for gain in plain["gains"]] == [["inplace"]]  # and nothing of ours
    assert plain["next"]["added"] == ["inplace"]  # it was measured, and is faster
    assert plain["next"]["expected"] is None  # what it does nobody here knows
    assert by_config["my_step/plain+inplace", 16]["next"] is None
    out = ended(folder, "explain", RUN).out
    assert "attend 60%" in out and "host-bound" not in out
    assert "arithmetic" not in out  # that of a ResNet-50


def test_a_roofline_of_a_step_that_declares_no_work_says_how_to(folder: Path) -> None:
    done = tcbench(folder, "roofline", RUN)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert (
        "my_step/plain declares no FLOPs; declare them with own.step(..., flops=..., bytes=...) (docs/own-step.md)"
        in done.err
    )


def test_declared_work_has_its_rate_in_tables_and_its_place_under_the_roof(folder: Path, monkeypatch) -> None:
    """A step of 16 samples takes 20 ms: 1 GFLOP in it are 50 GFLOP/s, half of what this machine can do."""
    can_do = Ceilings("it", {"fp32": 1e11}, 1e10, "measured")
    monkeypatch.setattr("tcbench.run.ceilings._cached", lambda _: can_do)
    work = (records.DeclaredWork(phase="attend", flops=6e8, bytes=1e7), records.DeclaredWork(phase="", flops=1e9))
    declared = [factories.remeasured(record("plain", 16, trial), declared=work) for trial in (0, 1)]
    factories.write(folder / "declared.jsonl", *declared)
    out = ended(folder, "explain", "declared.jsonl").out
    assert re.search(r"step +samples/s +FLOPs .*\n.*attend 60% .* 50% ", out), out
    assert json.loads(ended(folder, "explain", "declared.jsonl", "--json").out)["cells"][0]["flop_utilisation"] > 0.49
    [row] = json.loads(ended(folder, "export", "declared.jsonl", "--format", "json", "--per", "cell").out)["rows"]
    assert row["gflops_s"] == pytest.approx(50, rel=0.01)
    shown = ended(folder, "roofline", "declared.jsonl", *FIGURE).out
    assert re.search(r"attend +0\.600 +10\.0 .*\n.*whole step +1\.00 ", shown) and not FOREIGN.findall(shown), shown
