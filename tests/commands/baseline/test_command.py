"""`tcbench baseline` as a user meets it, on records of a real run."""

import os
import shutil
from pathlib import Path

import pytest
from command import ended, tcbench

REAL = Path(__file__).parents[3] / "results" / "amd-epyc-2cpu"
CPU, PEERS = "cpu-20261121-035658", "peers-20261121-110639"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the results of two real runs; the peers' are the newest."""
    folder = tmp_path / "results" / REAL.name
    folder.mkdir(parents=True)
    for age, run in ((100, CPU), (0, PEERS)):
        path = Path(shutil.copy(REAL / f"{run}.jsonl", folder))
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    return tmp_path


def test_a_run_is_named_by_its_id_and_one_trial_is_a_weak_base(project: Path) -> None:
    done = ended(project, "baseline", "set", "cpu", CPU)
    assert "20 cells, 20 trials of cpu" in done.out
    assert "every cell has only one trial, so comparisons are inconclusive" in done.err


def test_a_name_is_replaced_by_force_alone_and_is_never_the_newest_run(project: Path) -> None:
    assert tcbench(project, "baseline", "set", "b", CPU).code == 0
    refused = tcbench(project, "baseline", "set", "b")
    assert refused.code == 2 and "--force replaces it" in refused.err
    forced = tcbench(project, "baseline", "set", "b", "--force")
    assert "of peers on" in forced.out  # the baseline file itself is newer
    assert tcbench(project, "baseline", "remove", "b").code == 0
    assert not list(project.rglob("b.jsonl")) and len(list(project.rglob("*.jsonl"))) == 2
