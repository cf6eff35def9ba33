"""`tcbench baseline` as a user meets it, on records of a real run."""

import os
import shutil
from pathlib import Path

import pytest
from command import ended, tcbench

REAL = Path(__file__).parents[3] / "results" / "amd-epyc-2cpu"
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


def test_a_run_is_named_by_its_id_and_one_trial_is_a_weak_base(here: Path) -> None:
    done = ended(here, "baseline", "set", "cpu", CPU)
    assert "20 cells, 20 trials of cpu" in done.out
    assert "every cell has one trial only, with which every comparison is inconclusive" in done.err


def test_a_name_is_replaced_by_force_alone_and_is_never_the_newest_run(here: Path) -> None:
    assert tcbench(here, "baseline", "set", "b", CPU).code == 0
    refused = tcbench(here, "baseline", "set", "b")
    assert refused.code == 2 and "--force replaces it" in refused.err
    forced = tcbench(here, "baseline", "set", "b", "--force")
    assert "of peers on" in forced.out  # the baseline file itself is newer
    assert tcbench(here, "baseline", "remove", "b").code == 0
    assert not list(here.rglob("b.jsonl")) and len(list(here.rglob("*.jsonl"))) == 2
