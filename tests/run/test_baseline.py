"""Baselines: kept whole or not at all, under names that are names."""

from pathlib import Path

import pytest
from factories import make_environment, make_record, make_trials, write

from tcbench.core import store
from tcbench.core.errors import StoreError
from tcbench.run import baseline


def test_cells_of_two_machines_are_two(tmp_path: Path) -> None:
    other = make_environment("h200", commit="c0ffee")
    baseline.keep("b", [make_record(), make_record(environment=other, run_id="r2")], tmp_path)
    both = baseline.read("b", tmp_path)
    assert (both.machines, both.cells, both.commits) == (("amd-epyc-2cpu", "h200"), 2, ("tcbench 0.1.0", "c0ffee"))


def test_a_projects_commit_comes_before_tcbenchs(tmp_path: Path) -> None:
    baseline.keep("b", [make_record(environment=make_environment(commit="aaa", project_commit="bbb"))], tmp_path)
    assert baseline.read("b", tmp_path).commits == ("bbb",)


def test_a_folder_of_results_is_read_without_its_baselines(tmp_path: Path) -> None:
    write(tmp_path / "machine" / "run.jsonl", make_record())
    baseline.keep("main", [make_record("fp16")], tmp_path)
    assert [record.cell.config for record in store.read([tmp_path]).records] == ["fp32"]


def test_a_baseline_that_cannot_be_written_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = baseline.keep("main", [make_record("fp32")], tmp_path)
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        StoreError, match=r"cannot be written .*; free some space, or store it elsewhere with --out FOLDER"
    ):
        baseline.keep("main", make_trials("fp16"), tmp_path, replace=True)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["main.jsonl"]


def test_the_second_of_two_at_once_does_not_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline.keep("main", [make_record("fp32")], tmp_path)
    monkeypatch.setattr(Path, "exists", lambda self: False)  # the other was not there when this one looked
    with pytest.raises(StoreError, match="already exists"):
        baseline.keep("main", [make_record("fp16")], tmp_path)


NO_NAMES = ("", ".", ".hidden", "a/b", "/etc/passwd", "a b", "-rf", "a\n", "a\0b", "né", "x" * 65, "a\\b", "_a")


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_refused_before_anything_is_touched(tmp_path: Path, name: str) -> None:
    for act in (
        lambda: baseline.keep(name, [make_record()], tmp_path),
        lambda: baseline.baseline_path(name, tmp_path),
        lambda: baseline.remove(name, tmp_path),
    ):
        with pytest.raises(StoreError, match="bad name; expected up to 64 letters") as error:
            act()
        assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_no_records_are_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no records to keep"):
        baseline.keep("main", [], tmp_path)
    assert not (tmp_path / "baselines").exists()


def test_a_broken_baseline_does_not_hide_the_others(tmp_path: Path) -> None:
    baseline.keep("good", [make_record()], tmp_path)
    (tmp_path / "baselines" / "bad.jsonl").write_text("no JSON\n")
    (tmp_path / "baselines" / "empty.jsonl").write_text("")
    bad, empty, good = baseline.read_all(tmp_path)
    assert isinstance(bad, baseline.BrokenBaseline) and "not JSON" in bad.reason
    assert isinstance(empty, baseline.BrokenBaseline) and "contains no records" in empty.reason
    assert isinstance(good, baseline.Baseline)
