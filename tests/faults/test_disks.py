"""Disks that are full: what was there stays whole, what cannot be written is one line, and nothing is left beside."""

import faulty
import pytest
from processes import soon

pytestmark = pytest.mark.faults

WRITERS = {
    "plot.png": ("plot", "run.jsonl", "-o"),
    "plot.svg": ("plot", "run.jsonl", "-o"),
    "plot.pdf": ("plot", "run.jsonl", "-o"),
    "ladder.png": ("plot", "run.jsonl", "--kind", "ladder", "-o"),
    "trials.csv": ("export", "run.jsonl", "-o"),
    "steps.json": ("export", "run.jsonl", "--format", "json", "--per", "step", "-o"),
    "compared.md": ("compare", "run.jsonl", "slower.jsonl", "--format", "markdown", "-o"),
    "compared.png": ("compare", "run.jsonl", "slower.jsonl", "-o"),
    "history.png": ("history", "one.jsonl", "other.jsonl", "-o"),
    "timeline.svg": ("timeline", "run.jsonl", "-o"),
    "report.html": ("report", "run.jsonl", "-o"),
}
RUN = ("run", "quick.toml", "--threads", "1", "--out", "disk")


@pytest.fixture
def full(tmp_path):
    """A project with a small disk in it, at `disk`."""
    with faulty.disk(tmp_path / "disk", 256 * 1024) as folder:
        if folder is None:
            pytest.skip("no disk may be mounted here")
        faulty.make(tmp_path)
        yield folder


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_there_stays_whole_when_the_disk_is_full(full, tmp_path, name):
    faulty.write_records(tmp_path / "run.jsonl")
    for name_of_run in ("one", "other"):
        faulty.write_records(tmp_path / f"{name_of_run}.jsonl", commit=f"{len(name_of_run)}" * 12)
    faulty.write_records(tmp_path / "slower.jsonl", images_per_s=20.0)
    old = bytes(range(256)) * 20
    (full / name).write_bytes(old)
    faulty.fill(full, 0)
    done = faulty.run(tmp_path, *WRITERS[name], full / name)
    assert done.returncode == 2, done.stderr
    why = "cannot be written (No space left on device); name another file with -o"
    assert done.stderr.splitlines()[-1] == f"tcbench: error: {full / name}: {why}"
    assert "Traceback" not in done.stderr
    assert (full / name).read_bytes() == old
    assert sorted(path.name for path in full.iterdir()) == sorted(["ballast", name])


def test_a_run_on_a_full_disk_keeps_what_is_there_and_resumes_when_there_is_room(full, tmp_path):
    process = faulty.start(tmp_path, *RUN)
    assert soon(lambda: sum(len(faulty.lines(file)) for file in faulty.run_files(full)) >= 1, 600)
    ballast = faulty.fill(full, 0)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 3, errors
    (file,) = faulty.run_files(full)
    assert f"{file.relative_to(tmp_path)}: a record could not be written (No space left on device)" in errors
    stored = faulty.lines(file)
    assert 1 <= len(stored) < faulty.CELLS
    assert file.read_bytes() == b"".join(line + b"\n" for line in stored)
    ballast.unlink()
    done = faulty.run(tmp_path, *RUN, "--resume")
    assert done.returncode == 0, done.stderr
    assert faulty.lines(file)[: len(stored)] == stored
    assert len(faulty.lines(file)) == faulty.CELLS


def test_a_run_without_room_for_its_chart_says_so_and_is_no_failure(full, tmp_path):
    faulty.fill(full, 28 * 1024)  # for four records
    done = faulty.run(tmp_path, *RUN)
    assert done.returncode == 0, done.stderr
    (file,) = faulty.run_files(full)
    chart = file.with_suffix(".png").relative_to(tmp_path)
    assert f"note: no chart: {chart}: cannot be written (No space left on device)\n" in done.stderr
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_profile_without_room_leaves_nothing_behind(full, tmp_path):
    faulty.fill(full, 0)
    words = ("profile", "my_step/one", "quick.toml", "--bs", "1", "--tool", "ranges", "--threads", "1", "--out", "disk")
    done = faulty.run(tmp_path, *words)
    assert done.returncode == 2, done.stderr
    assert "cannot be written (No space left on device); name another folder with --out" in done.stderr
    assert [path.name for path in full.rglob("*") if path.is_file()] == ["ballast"]


def test_without_room_for_temporary_files_every_trial_is_a_record(full, tmp_path):
    """A worker's log has a place of its own; what lies there is not needed to keep records."""
    (tmp_path / "tmp").rmdir()
    (tmp_path / "tmp").symlink_to(full, target_is_directory=True)
    faulty.fill(full, 0)
    done = faulty.run(tmp_path, *RUN[:-1], "elsewhere")
    (file,) = faulty.run_files(tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr
    assert len(faulty.lines(file)) == faulty.CELLS
