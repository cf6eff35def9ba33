"""`tcbench history` as a user meets it, on planted records: which of them it takes."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
import projects
import pytest
from command import ended, tcbench
from histories import over_commits

from tcbench.core.record import Record
from tcbench.core.store import Store


def plant(folder: Path, records: Iterable[Record]) -> None:
    """A file per run, as `tcbench run` leaves them."""
    for record in records:
        with Store(folder / "results" / "amd-epyc-2cpu" / f"{record.run_id}.jsonl") as run:
            run.append(record)


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one of the planted records."""
    monkeypatch.setattr("tcbench.hardware.machine.cpu_name", lambda: "AMD EPYC")
    monkeypatch.setattr("tcbench.hardware.machine.usable_cpus", lambda: 2)


def test_the_stacks_that_one_commit_was_measured_on_are_named_in_every_form(tmp_path: Path) -> None:
    plant(tmp_path, over_commits([40, 36], trials=5))
    newer = over_commits([40, 36], trials=5, environments=[{"python": "3.12.1"}] * 2)
    plant(tmp_path, [msgspec.structs.replace(record, run_id=f"{record.run_id}-2") for record in newer])
    done = ended(tmp_path, "history", "-o", "history.svg")
    headings = [line.partition("  ")[0] for line in done.out.splitlines() if line.startswith("fp32")]
    assert sorted(headings) == [f"fp32, batch size 4 (python: {version})" for version in ("3.11.2", "3.12.1")]
    chart = (tmp_path / "history.svg").read_text("utf-8")
    assert all(f"python: {version}" in chart for version in ("3.11.2", "3.12.1"))
    cells = json.loads(tcbench(tmp_path, "history", "--json").out)["cells"]
    assert sorted(cell["stack"] for cell in cells) == ["python: 3.11.2", "python: 3.12.1"]


def test_of_one_commit_all_cells_are_one_table(tmp_path: Path) -> None:
    plant(tmp_path, [record for config in ("fp32", "fp16") for record in over_commits([40], config, trials=3)])
    head, *rows = tcbench(tmp_path, "history").out.splitlines()
    assert head.split()[0] == "cell" and {"commit", "measured", "images/s", "trials", "verdict"} <= {*head.split()}
    assert [row[:18] for row in rows[:3]] == ["fp32, batch size 4", "fp16, batch size 4", ""]
    assert any("±: 95% interval of the cell alone (`run`: of all)" in row for row in rows)


def test_commits_stand_by_ancestry_without_the_trials_of_gates_and_bisections(tmp_path: Path) -> None:
    """The loss was planted in the second commit; the newest was measured first, the oldest last."""
    project = projects.make(tmp_path / "project")
    ids = [projects.git(project, "rev-parse", "HEAD"), projects.commit(project), projects.commit(project)]
    facts = [{"project_commit": commit[:12], "commit": "c" * 12} for commit in reversed(ids)]
    plant(project, over_commits([36, 36, 40], trials=5, environments=facts))
    of_gate = [(f"gate-20250301-000000-{side}", 80) for side in ("base", "current")]
    for run_id, rate in [*of_gate, (f"bisect-20250301-000000-{ids[0][:12]}", 20)]:
        plant(project, over_commits([rate], trials=5, environments=facts[2:], run_id=run_id))
    done = tcbench(project, "history")
    assert "1 cell over 3 commits: 1 regression in 2 comparisons" in done.out
    assert "left out: trials of gates and bisections" in done.out
    value = json.loads(tcbench(project, "history", "results", "--json").out)
    [cell] = value["cells"]
    assert [point["commit"] for point in cell["points"]] == [commit[:12] for commit in ids]
    assert [point["verdict"] for point in cell["points"]] == [None, "regression", "pass"]
    named_run = json.loads(tcbench(project, "history", "gate-20250301-000000-base", "--json").out)
    assert [point["trials"] for point in named_run["cells"][0]["points"]] == [5]


def test_baselines_are_no_runs(tmp_path: Path) -> None:
    plant(tmp_path, over_commits([40, 36], trials=5))
    assert tcbench(tmp_path, "baseline", "set", "b").code == 0
    before = json.loads(tcbench(tmp_path, "history", "--json").out)
    assert all(point["trials"] == 5 for cell in before["cells"] for point in cell["points"])


def test_only_what_this_machine_measured_is_shown_unless_a_path_names_more(tmp_path: Path) -> None:
    project = projects.make(tmp_path / "project")
    plant(project, over_commits([40, 40]))
    shutil.copytree(project / "results/amd-epyc-2cpu", project / "results/other-machine")
    plant(project, over_commits([70], "fp16"))  # into the first file, and the first is kept by git
    projects.git(project, "add", "--force", "results/amd-epyc-2cpu/cpu-20250101-000000.jsonl")
    done = tcbench(project, "history")
    assert "1 cell over 1 commit: nothing to compare yet" in done.out and "fp16" not in done.out
    assert "left out: 3 files of other machines or tracked by git; `tcbench history results` shows all\n" in done.out
    assert "left out: 3 files" in tcbench(project, "history", "--json").err
    assert "left out" not in tcbench(project, "history", "results").out
    shutil.rmtree(project / "results/amd-epyc-2cpu")
    done = tcbench(project, "history")
    assert (done.code, done.err.count("\n")) == (2, 1)
    message = "no results of this machine in results/; measure some with `tcbench run`; `tcbench history results` shows"
    assert message in done.err
