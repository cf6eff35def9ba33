"""`tcbench claims` as a user meets it, on the committed records of real runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import factories
import pytest
import timelines
from command import ended

from tcbench.tracing import perfetto

RESULTS = Path(__file__).parents[3] / "results" / "amd-epyc-2cpu"
CPU, PEERS = RESULTS / "cpu-20261121-035658.jsonl", RESULTS / "peers-20261121-110639.jsonl"


def outcomes(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = ended(folder, "claims", *arguments, "--format", "json")
    value = json.loads(done.out, parse_constant=pytest.fail)
    assert value["schema"] == "tcbench-claims"
    return list(value["scorecards"])


def alone(folder: Path, results: Path = CPU) -> str:
    """The records without what lies beside them: a document of `tcbench numerics` there answers claims too."""
    shutil.copy(results, folder)
    return results.name


def test_a_document_beside_the_records_that_cannot_be_read_is_left_out_and_one_that_was_named_is_an_error(tmp_path):
    alone(tmp_path)
    good = (RESULTS / "numerics-20261121-145202.json").read_bytes()
    (tmp_path / "numerics-20261121-145202.json").write_bytes(good)
    broken = {
        "numerics-20990101-000000.json": good[:5000],
        "numerics-20990102-000000.json": b'{"a": 1}',
        "numerics-20990103-000000.json": b'{"schema": "tcbench-numerics", "schema_version": 2}',
    }
    for name, data in broken.items():
        (tmp_path / name).write_bytes(data)
    done = ended(tmp_path, "claims", CPU.name, "--format", "json")
    assert [line.split(": ")[:2] for line in done.err.splitlines()] == [["note", "left out"]] * 3
    assert all(name in done.err for name in broken)
    [card] = json.loads(done.out)["scorecards"]
    claims = {claim["says"]: claim for claim in card["claims"]}
    assert claims["fp16 with loss scaling and fp32 master weights trains like fp32"]["outcome"] == "holds"
    for name in broken:
        done = ended(tmp_path, "claims", CPU.name, name, code=2)
        assert done.err.startswith(f"tcbench: error: {name}: ")


def test_another_scenarios_claims_can_be_asked(tmp_path: Path) -> None:
    [card] = outcomes(tmp_path, alone(tmp_path), "--scenario", "naruse2018")
    counts = card["counts"]
    assert counts["not measured"] + counts["not testable here"] == len(card["claims"]) == 22
    [kernels] = [claim for claim in card["claims"] if claim["relation"] == "fewer kernels"]
    assert (kernels["outcome"], kernels["why"]) == ("not testable here", "no GPU here, so no kernels")
    assert card["commands"][0].startswith("tcbench run naruse2018 --image-size 64 --bs ")


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"device": "virtual:V100", "host_speed": 0.2}, "--device virtual:V100 --image-size 64 --host-speed 0.2 "),
        ({"input": {"kind": "synthetic"}}, "--data synthetic --image-size 64 "),
        (
            {"input": {"kind": "modelled", "images_per_s": 2000.0}, "device": "virtual:T4"},
            "--device virtual:T4 --data modelled:2000 --image-size 64 ",
        ),
        ({"device": "unheard-of:3"}, "--image-size 64 --bs"),
    ],
)
def test_what_is_missing_is_measured_in_the_records_own_setting(tmp_path: Path, changed, options) -> None:
    path = tmp_path / alone(tmp_path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record["cell"].update(changed)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    [card] = outcomes(tmp_path, path.name, "--scenario", "naruse2018")
    assert card["commands"][0].startswith(f"tcbench run naruse2018 {options}")


def test_timelines_beside_the_records_tell_kernels_per_step(tmp_path: Path) -> None:
    few, many = "fp16+dali+batched+nhwc+fused", "fp16+dali+batched"
    for config, n in ((few, 3), (many, 5)):
        spans = [timelines.kernel(i / 10, (i + 0.5) / 10) for i in range(n)]
        seen = timelines.make_timeline(timelines.step(0, 1), *spans, label=f"{config}, batch size 64", batch_size=64)
        perfetto.write([seen], tmp_path / f"{config}.json.gz")
    arguments = ("--scenario", "naruse2018", f"{few}.json.gz", f"{many}.json.gz")
    [card] = outcomes(tmp_path, str(CPU), *arguments)
    claim = next(claim for claim in card["claims"] if claim["relation"] == "fewer kernels")
    assert (claim["outcome"], claim["why"]) == ("holds", "64: 3 kernels per step against 5")
    both = ended(tmp_path, "claims", str(CPU), str(PEERS), *arguments, code=2)
    assert "timelines do not record their machine; name the records of only one run with them" in both.err


OWN = """
schema = 1
title = "t"
measure.batch_sizes = [4]
model.image_size = 64
[[config]]
rungs = ["fp32"]
"""
OWN_CLAIM = '[[claim]]\nsays = "it runs"\nleft = "fp32"\nrelation = "runs"\n'


def test_results_of_a_scenario_that_is_not_here_ask_for_its_file(tmp_path: Path) -> None:
    cell = factories.make_cell(scenario="mine")
    factories.write(tmp_path / "mine.jsonl", factories.make_record(cell=cell))
    (tmp_path / "mine.toml").write_text(OWN + OWN_CLAIM, encoding="utf-8")
    (tmp_path / "none.toml").write_text(OWN, encoding="utf-8")
    done = ended(tmp_path, "claims", "mine.jsonl", code=2)
    assert done.err == (
        "tcbench: error: scenario 'mine' of the results does not come with tcbench; name its file with --scenario\n"
    )
    [card] = outcomes(tmp_path, "mine.jsonl", "--scenario", "mine.toml")
    assert [claim["outcome"] for claim in card["claims"]] == ["holds"]
    none = ended(tmp_path, "claims", "mine.jsonl", "--scenario", "none.toml")
    assert "no claims: the scenario has no" in none.out
