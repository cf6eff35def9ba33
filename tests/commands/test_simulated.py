"""Simulated results say so wherever they are shown, and are never taken for measured ones."""

import dataclasses
import json
import re
from pathlib import Path

import factories
import msgspec
import pytest
import timelines
from command import tcbench

from tcbench.core import record
from tcbench.core.record import GpuFacts, Simulated
from tcbench.tracing import perfetto

CARD = "Tesla V100-SXM2-16GB"
SAYS = f"simulated: a modelled {CARD}, driven by AMD EPYC at 0.5 times its speed; attained fractions: table 1a2b"
SIMULATED = factories.make_environment(
    "virtual-tesla-v100-sxm2-16gb",
    f"simulated {CARD}",
    gpu=GpuFacts(name=CARD, compute_capability=(7, 0), multiprocessors=80, memory_bytes=16 * 2**30),
    simulated=Simulated(card=CARD, host="AMD EPYC", host_speed=0.5, attained="table 1a2b"),
)
LADDER = ("fp32", "fp32+dali", "fp32+dali+batched")


def write(path: Path, environment: record.Environment = SIMULATED, scenario: str = "naruse2018") -> Path:
    """Two trials of each cell of a ladder on a machine."""
    records = [
        factories.make_record(
            cell=factories.make_cell(config, 8, scenario=scenario, device="virtual:V100", image_size=224),
            trial=trial,
            images_per_s=images_per_s,
            environment=environment,
            run_id=path.stem,
        )
        for config, images_per_s in zip(LADDER, (400, 500, 600), strict=True)
        for trial in range(2)
    ]
    return factories.write(path, *records)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write(tmp_path / "results" / "virtual-tesla-v100-sxm2-16gb" / "naruse2018-20270101-000000.jsonl")


@pytest.mark.parametrize("words", [["explain"], ["history"], ["baseline", "show", "kept"]])
def test_tables_begin_with_the_whole_line(tmp_path: Path, results: Path, words: list[str]) -> None:
    assert tcbench(tmp_path, "baseline", "set", "kept").code == 0
    done = tcbench(tmp_path, *words)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == SAYS


@pytest.mark.parametrize(
    "words", [["explain"], ["claims"], ["claims", "--format", "markdown"], ["report", "-o", "report.html"]]
)
def test_figures_are_not_headed_measured(tmp_path: Path, results: Path, words: list[str]) -> None:
    def shown(environment: record.Environment) -> str:
        write(results, environment)
        done = tcbench(tmp_path, *words, COLUMNS="200")
        assert done.code == 0, done.err
        page = tmp_path / "report.html"
        return page.read_text(encoding="utf-8").partition("Trials")[0] if words[0] == "report" else done.out

    headed = re.compile(r"(?<!not )(?<!was )\bmeasured\b(?! here)")
    assert headed.search(shown(factories.make_environment()))
    assert not (found := headed.search(text := shown(SIMULATED))), text[found.start() - 200 : found.end() + 200]


def test_that_the_newest_run_is_simulated_is_told(tmp_path: Path, results: Path) -> None:
    assert tcbench(tmp_path, "export").err.endswith("\nnote: it is simulated\n")
    assert tcbench(tmp_path, "export", results).err == ""
    write(tmp_path / "results" / "here" / "cpu-20280101-000000.jsonl", factories.make_environment(), "cpu")
    assert tcbench(tmp_path, "export").err == "the newest run: results/here/cpu-20280101-000000.jsonl\n"


@pytest.mark.parametrize(
    ("words", "pages"),
    [
        (["plot"], "tcbench.svg"),
        (["plot", "--kind", "ladder"], "tcbench.svg"),
        (["plot", "--by", "machine"], "tcbench.svg"),
        (["roofline"], "tcbench.svg"),
        (["history"], "tcbench.svg"),
        (["report"], "report.html"),
    ],
)
def test_every_picture_and_page_says_so(tmp_path: Path, results: Path, words: list[str], pages: str) -> None:
    if words == ["history"]:  # which draws what was measured at two commits
        for n in (1, 2):
            environment = msgspec.structs.replace(SIMULATED, commit=f"{n}" * 40)
            write(results.with_name(f"naruse2018-2027010{n}-000000.jsonl"), environment)
    done = tcbench(tmp_path, *words, "-o", pages)
    assert done.code == 0, done.err
    drawn = (tmp_path / pages).read_text(encoding="utf-8")
    assert "(simulated)" in drawn
    if words[0] in ("plot", "report"):
        assert "at 0.5 times its speed" in " ".join(drawn.split())


@pytest.mark.parametrize("words", [("list",), ("doctor",)])
def test_virtual_gpus_are_offered_as_simulated(tmp_path: Path, words: tuple[str, ...]) -> None:
    [line] = [one for one in tcbench(tmp_path, *words).out.splitlines() if "virtual:V100" in one]
    assert "simulate" in line


def test_what_a_timeline_shows_names_its_device(tmp_path: Path) -> None:
    made = timelines.made(timelines.step(0, 1), timelines.phase("io", 0, 1), timelines.kernel(0, 1))
    timeline = dataclasses.replace(made, device_name=f"simulated {CARD}", source="simulated")
    perfetto.write([timeline], tmp_path / "profile.json")
    assert tcbench(tmp_path, "explain", "profile.json").out.splitlines()[0] == f"simulated {CARD}"
    [shown] = json.loads(tcbench(tmp_path, "explain", "profile.json", "--json").out)["timelines"]
    assert shown["device_name"] == f"simulated {CARD}"
    assert tcbench(tmp_path, "timeline", "profile.json", "-o", "steps.svg").code == 0
    assert "Timeline (simulated)" in (tmp_path / "steps.svg").read_text("utf-8")
