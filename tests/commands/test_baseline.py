"""`tcbench baseline` as a user meets it, on records of a real run."""

import json
import os
import shutil
from pathlib import Path

import pytest
from command import tcbench

REAL = Path(__file__).parents[2] / "results" / "amd-epyc-2cpu"
CPU, PEERS = "cpu-20261121-035658", "peers-20261121-110639"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the results of two real runs; the peers' are the newest."""
    folder = tmp_path / "results" / REAL.name
    folder.mkdir(parents=True)
    for age, run in ((100, CPU), (0, PEERS)):
        path = Path(shutil.copy(REAL / f"{run}.jsonl", folder))
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    return tmp_path


def test_a_baseline_is_set_listed_shown_and_removed(here: Path) -> None:
    done = tcbench(here, "baseline", "set", "main")
    assert done.code == 0, done.err
    path = here / "results" / "baselines" / "main.jsonl"
    source = here / "results" / REAL.name / f"{PEERS}.jsonl"
    assert path.read_bytes().count(b"\n") == source.read_bytes().count(b"\n") == 30
    assert "baseline 'main': 10 cells, 30 trials of peers on amd-epyc-2cpu at " in done.out
    assert "note: these are results of 2 commits: 2e0a82d36637, d5ea3305adc1" in done.err

    listed = tcbench(here, "baseline", "list")
    assert listed.code == 0
    heading, row = listed.out.splitlines()
    assert heading.split() == ["name", "machine", "scenario", "cells", "trials", "commit", "date"]
    assert row.split()[:5] == ["main", "amd-epyc-2cpu", "peers", "10", "30"] and row.split()[-1] == "2026-11-21"
    [one] = json.loads(tcbench(here, "baseline", "list", "--json").out)["baselines"]
    assert (one["cells"], one["trials"], one["scenarios"]) == (10, 30, ["peers"])

    shown = tcbench(here, "baseline", "show", "main")
    assert shown.code == 0
    assert "torch/fp32" in shown.out and "±: 95% interval over trials." in shown.out
    assert len(json.loads(tcbench(here, "baseline", "show", "main", "--json").out)["cells"]) == 10

    assert tcbench(here, "baseline", "remove", "main").out == "removed results/baselines/main.jsonl\n"
    assert not path.exists() and source.exists()
    assert "no baselines in results/baselines/" in tcbench(here, "baseline", "list").out


def test_a_run_is_named_by_its_id_and_one_trial_is_a_weak_base(here: Path) -> None:
    done = tcbench(here, "baseline", "set", "cpu", CPU)
    assert done.code == 0, done.err
    assert "20 cells, 20 trials of cpu" in done.out
    assert "every cell has one trial only, with which every comparison is inconclusive" in done.err


def test_a_name_is_replaced_by_force_alone_and_is_never_the_newest_run(here: Path) -> None:
    assert tcbench(here, "baseline", "set", "b", CPU).code == 0
    refused = tcbench(here, "baseline", "set", "b")
    assert refused.code == 2 and "--force replaces it" in refused.err
    forced = tcbench(here, "baseline", "set", "b", "--force")
    assert "of peers on" in forced.out  # the baseline file itself is newer
