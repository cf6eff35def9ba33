"""Folders that go away under a run, or that nobody may write to: what was measured is kept, and it is said where."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import faulty
import pytest
from processes import soon

pytestmark = pytest.mark.faults

RUN = ("run", "quick.toml", "--threads", "1", "--out", "results")


FAULTS = {
    "the file is removed": lambda file: file.unlink(),
    "the file is renamed": lambda file: file.rename(file.with_name("old.txt")),
    "the machine's folder is removed": lambda file: shutil.rmtree(file.parent),
    "the results are removed": lambda file: shutil.rmtree(file.parents[1]),
    "the results are renamed": lambda file: file.parents[1].rename(file.parents[2] / "elsewhere"),
    "the file is emptied": lambda file: os.truncate(file, 0),
    "the file is cut off": lambda file: os.truncate(file, file.stat().st_size - 100),
}


@pytest.mark.parametrize("enough", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_results_that_go_away_while_a_run_goes_on_are_kept_and_said(tmp_path, fault, enough):
    folder = faulty.make(tmp_path)
    process = faulty.start(folder, *RUN)
    results = folder / "results"
    assert soon(lambda: sum(len(faulty.lines(file)) for file in faulty.run_files(results)) >= enough, 600)
    (file,) = faulty.run_files(results)
    FAULTS[fault](file)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 3, errors
    assert "the file was removed, renamed, replaced or changed during the run" in errors
    file_kept = folder / re.search(r"all records were saved to (\S+);", errors)[1]
    assert (file_kept == file) == (fault not in ("the file is emptied", "the file is cut off"))
    assert len(faulty.lines(file_kept)) >= enough
    assert {status for *_, status in faulty.answers(file_kept)} == {"ok"}
    assert not faulty.left(folder)
    done = faulty.run(folder, *RUN, "--resume")
    assert done.returncode == 0, done.stderr
    assert len(faulty.lines(file_kept)) == faulty.CELLS


def test_a_run_whose_own_folder_is_removed_keeps_what_was_measured(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    faulty.make(tmp_path)
    process = faulty.start(tmp_path, "run", tmp_path / "quick.toml", "--threads", "1", cwd=folder)
    assert soon(lambda: sum(len(faulty.lines(file)) for file in faulty.run_files(folder / "results")) >= 1, 600)
    shutil.rmtree(folder)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 3, errors
    file_kept = Path(re.search(r"all records were saved to (\S+);", errors)[1])
    assert file_kept.parent == tmp_path / "tmp"
    assert len(faulty.lines(file_kept)) >= 1


def test_a_folder_that_takes_no_files_is_one_line_before_anything_is_measured(tmp_path):
    folder = faulty.make(tmp_path)
    faulty.write_records(folder / "run.jsonl")
    for name in ("one", "other"):
        faulty.write_records(folder / f"{name}.jsonl", commit=f"{len(name)}" * 12)
    with faulty.disk(tmp_path / "disk", 64 * 1024) as disk:
        if disk is None:
            pytest.skip("no disk may be mounted here")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for words in (
            (*RUN[:-1], "disk"),
            ("export", "run.jsonl", "-o", "disk/a.csv"),
            ("plot", "run.jsonl", "-o", "disk/a.png"),
            ("report", "run.jsonl", "-o", "disk/a.html"),
            ("history", "one.jsonl", "other.jsonl", "-o", "disk/a.png"),
            ("baseline", "set", "main", "run.jsonl", "--out", "disk"),
        ):
            done = faulty.run(folder, *words)
            assert done.returncode == 2, (words, done.stderr)
            assert done.stderr.count("\n") == 1, done.stderr
            assert "cannot be written (Read-only file system)" in done.stderr
        assert not list(disk.iterdir())
