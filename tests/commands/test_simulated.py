"""Simulated results say so wherever they are shown, and are never taken for measured ones."""

import dataclasses
from pathlib import Path

import factories
import msgspec
import pytest
import timelines
from command import ended, tcbench

from tcbench.analysis.summary import speedups, summarise
from tcbench.core import record
from tcbench.core.record import GpuFacts, Simulated
from tcbench.core.store import read
from tcbench.show import cells
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
    return write(tmp_path / "results" / "virtual-tesla-v100-sxm2-16gb" / "naruse2018-20250101-000000.jsonl")


def test_tables_begin_with_the_whole_line(tmp_path: Path, results: Path) -> None:
    assert tcbench(tmp_path, "baseline", "set", "kept").code == 0
    for words in (["explain"], ["baseline", "show", "kept"]):
        assert tcbench(tmp_path, *words).out.splitlines()[0] == SAYS


def test_a_simulation_wears_no_interval(results: Path) -> None:
    summaries = summarise(read([results]).records)
    columns = {column.name: column for column in cells.columns(summaries)}
    rows = [cells.Row(*pair) for pair in zip(summaries, speedups(summaries), strict=True)]
    assert not any("±" in columns[name].text(row) for name in ("images/s", "vs fp32") for row in rows)


def test_that_the_newest_run_is_simulated_is_told(tmp_path: Path, results: Path) -> None:
    assert tcbench(tmp_path, "export").err.endswith("\nnote: this run is simulated\n")
    assert tcbench(tmp_path, "export", results).err == ""
    write(tmp_path / "results" / "here" / "cpu-20260101-000000.jsonl", factories.make_environment(), "cpu")
    assert tcbench(tmp_path, "export").err == "the newest run: results/here/cpu-20260101-000000.jsonl\n"


@pytest.mark.parametrize("command", ["plot", "roofline", "history"])
def test_pictures_say_so(tmp_path: Path, results: Path, command: str) -> None:
    if command == "history":  # which draws what was measured at two commits
        for n in (1, 2):
            environment = msgspec.structs.replace(SIMULATED, commit=f"{n}" * 40)
            write(results.with_name(f"naruse2018-2027010{n}-000000.jsonl"), environment)
    ended(tmp_path, command, "-o", "drawn.svg")
    assert "(simulated)" in (tmp_path / "drawn.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [("list",), ("doctor",)])
def test_virtual_gpus_are_offered_as_simulated(tmp_path: Path, words: tuple[str, ...]) -> None:
    [line] = [candidate for candidate in tcbench(tmp_path, *words).out.splitlines() if "virtual:V100" in candidate]
    assert "simulate" in line


def test_what_a_timeline_shows_names_its_device(tmp_path: Path) -> None:
    timeline = dataclasses.replace(timelines.busy_timeline(), device_name=f"simulated {CARD}", source="simulated")
    perfetto.write([timeline], tmp_path / "profile.json")
    assert tcbench(tmp_path, "explain", "profile.json").out.splitlines()[0] == f"simulated {CARD}"
    assert tcbench(tmp_path, "timeline", "profile.json", "-o", "steps.svg").code == 0
    assert "Timeline (simulated)" in (tmp_path / "steps.svg").read_text("utf-8")
