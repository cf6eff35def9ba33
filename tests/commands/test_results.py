"""The files that a command reads as its results."""

import os
import re
import subprocess
from pathlib import Path

import factories
import pytest
import reports
import timelines
from command import ended, tcbench

from tcbench.core import record
from tcbench.engine.accelerators.device import host_device
from tcbench.run.inputs import files_beside
from tcbench.show.results import newest
from tcbench.tracing import perfetto


def plant(folder: Path, *names: str) -> None:
    """A run's file per name, each written a minute before the one named before it."""
    for minutes, name in enumerate(names):
        path = factories.write(folder / f"{name}.jsonl", factories.make_record(run_id=name))
        os.utime(path, (1_800_000_000 - 60 * minutes,) * 2)  # 2027-01-15


@pytest.mark.parametrize(
    "names",
    [
        ("cpu-20261121-035658", "peers-20261121-110639"),
        ("z/peers-20261121-110639", "a/cpu-20261121-110640"),
        ("cpu-20261121-110639", "cpu-20261121-110639-2"),
        ("cpu-20261121-110639-9", "cpu-20261121-110639-10"),
        ("gate-20261121-155558-current", "cpu-20261121-155557"),  # which a gate may have refused
        ("gate-20261121-155558-2-base", "cpu-20261121-155557"),
        ("cpu-20261121-035658", "mine"),  # by its last write, in 2027
        ("mine", "cpu-20280101-000000"),
        ("cpu-20261121-035657_labelled", "cpu-20261121-035658"),
        ("cpu-20261121-035658-2_a-label_20250101-000000", "cpu-20261121-035658-3"),
    ],
)
def test_the_newest_run_is_the_one_that_began_last_whatever_was_written_last(tmp_path, monkeypatch, names):
    monkeypatch.setattr("time.time", lambda: 2e9)  # in 2033: none of these lies in the future
    plant(tmp_path, *names)
    assert newest(tmp_path) == tmp_path / f"{names[1]}.jsonl"


def test_what_a_gate_measured_or_git_keeps_is_named_and_not_taken(tmp_path: Path) -> None:
    plant(tmp_path / "results", "gate-20261121-155558-base", "gate-20261121-155558-current", "cpu-20261121-035658")
    for words in (["init", "--quiet"], ["add", "results/cpu-20261121-035658.jsonl"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    done = tcbench(tmp_path, "baseline", "set", "main")
    assert (done.code, done.out) == (2, "")
    assert (
        "no run of your own in results/; measure one with `tcbench run`, or name an existing file, such as results/"
        in done.err
    )
    assert tcbench(tmp_path, "baseline", "set", "main", "cpu-20261121-035658").code == 0
    plant(tmp_path / "results", "cpu-20261121-035657")  # older than both, and the user's own
    done = tcbench(tmp_path, "compare", "--baseline", "main")
    assert done.err.startswith("the newest run: results/cpu-20261121-035657.jsonl\n")


def test_timeline_takes_the_newest_profile_that_git_does_not_keep(tmp_path: Path) -> None:
    done = tcbench(tmp_path, "timeline")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no profile of your own in results/; record one with `tcbench profile fp32`, or name a file" in done.err
    mine = tmp_path / "results" / "m" / "profile-fp32-bs4-cpu-20261121-035658.json.gz"
    mine.parent.mkdir(parents=True)
    profile = "profile-fp32-bs4-20990101-000000.json.gz"
    for name in (mine.name, "profile-fp32+dali-bs4-cpu-20261121-035657.json.gz", profile):
        perfetto.write([timelines.busy_timeline()], mine.with_name(name))
    for words in (["init", "--quiet"], ["add", f"results/m/{profile}"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    done = tcbench(tmp_path, "timeline", "-o", "mine.svg")
    assert (done.code, done.out) == (0, "wrote mine.svg\n"), done.err
    assert done.err == f"the newest profile: {mine.relative_to(tmp_path)}\n"


def test_timeline_draws_the_cells_that_are_chosen(tmp_path: Path) -> None:
    run = factories.write(tmp_path / "run.jsonl", *reports.ladders(1, sizes=(4, 8)))
    ended(tmp_path, "timeline", str(run), "--config", "fp32,fp32*fused", "--bs", "8", "-o", "x.svg")
    drawn = re.findall(r"<!-- (.+, batch size \d+) -->", (tmp_path / "x.svg").read_text("utf-8"))
    assert drawn == ["fp32, batch size 8", "fp32+dali+batched+nhwc+fused, batch size 8"]
    refused = tcbench(tmp_path, "timeline", str(run), "--bs", "16")
    assert (refused.code, refused.err) == (2, "tcbench: error: --bs 16: not in these results; expected some of 4, 8\n")


@pytest.mark.long
@pytest.mark.parametrize("command", ["claims", "explain", "export", "history", "plot", "report"])
def test_results_in_another_folder_are_read_by_default_and_by_their_id(tmp_path: Path, command: str) -> None:
    run = tmp_path / "kept" / host_device().machine / "cpu-20261121-035658.jsonl"
    factories.write(run, *reports.ladders(1, sizes=(4,)))
    newest_run = "" if command == "history" else f"the newest run: {run.relative_to(tmp_path)}\n"
    for words, expected in (((), newest_run), (("cpu-20261121-035658",), "")):
        done = tcbench(tmp_path, command, *words, "--out", "kept")
        assert (done.code, done.err) == (0, expected)
    refused = tcbench(tmp_path, command)
    assert refused.code == 2 and re.match(r".*no results (of this machine )?in results/", refused.err)


def test_a_report_finds_baselines_where_the_results_are(tmp_path: Path) -> None:
    plant(tmp_path / "kept" / "machine", "cpu-20261121-035658")
    assert tcbench(tmp_path, "baseline", "set", "main", "--out", "kept").code == 0
    plant(tmp_path / "kept" / "machine", "cpu-20261121-035659")
    done = tcbench(tmp_path, "report", "--baseline", "main", "--out", "kept")
    assert (done.code, done.out) == (0, "wrote kept/machine/cpu-20261121-035659-report.html\n")
    assert "baseline main" in (tmp_path / done.out.split()[-1]).read_text(encoding="utf-8")
    assert tcbench(tmp_path, "report", "--compare", "cpu-20261121-035658", "--out", "kept").code == 0


def test_what_lies_beside_records_is_found_once_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    profile = tmp_path / "deep" / "er" / "profile-1.json.gz"
    profile.touch()
    run = tmp_path / "link" / "er" / "run.jsonl"
    for paths in ([tmp_path / "deep"], [run, tmp_path]):
        assert list(files_beside(paths, "profile-*")) == [profile]
    assert files_beside([tmp_path / "deep" / "run.jsonl"], "profile-*") == {}


def test_beside_a_run_of_ones_own_lies_nothing_that_git_keeps_and_beside_one_that_it_keeps_everything(tmp_path: Path):
    tracked_file, kept_run, untracked_file, own_run = (
        tmp_path / name for name in ("n-1.json", "1.jsonl", "n-2.json", "2.jsonl")
    )
    for path in (tracked_file, kept_run, untracked_file, own_run):
        path.touch()
    for words in (["init", "-q"], ["add", tracked_file.name, kept_run.name]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    found_files = [sorted(files_beside([path], "n-*").values()) for path in (own_run, kept_run, tmp_path)]
    assert found_files == [[untracked_file], [tracked_file, untracked_file], [tracked_file, untracked_file]]


@pytest.mark.parametrize("command", ["report", "plot", "export", "explain", "claims"])
def test_a_newest_run_that_ended_within_its_first_record_is_passed_over(tmp_path: Path, command: str) -> None:
    plant(tmp_path / "results" / "m", "cpu-20261121-035658")
    half = tmp_path / "results" / "m" / "cpu-20261122-000000.jsonl"
    half.write_bytes(record.encode(factories.make_record())[:500])
    done = ended(tmp_path, command)
    assert done.err == (
        "note: results/m/cpu-20261122-000000.jsonl: contains only an incomplete line; skipped\n"
        "the newest run: results/m/cpu-20261121-035658.jsonl\n"
    )
    both = ended(tmp_path, command, "results")
    assert "the last line is cut off and was left out; 0 records read" in both.err


ENDLESS = [
    *((("history", name)) for name in ("/dev/zero", "zero.jsonl", "zero.json", "pipe.jsonl", "large.jsonl")),
    *((("claims", "good.jsonl", name)) for name in ("/dev/zero", "zero.json", "large.json")),
    *((("run", "--dry-run", name)) for name in ("zero.toml", "large.toml", "deep.toml")),
    *((("forecast", "--gpu", name)) for name in ("/dev/zero", "zero.json", "large.json", "deep.json")),
]


@pytest.mark.parametrize("words", ENDLESS, ids=" ".join)
def test_what_has_no_end_or_is_too_large_or_too_deep_is_one_line(tmp_path, words):
    factories.write(tmp_path / "good.jsonl", factories.make_record())
    os.mkfifo(tmp_path / "pipe.jsonl")
    for ending in ("jsonl", "json", "toml"):
        (tmp_path / f"zero.{ending}").symlink_to("/dev/zero")
        (tmp_path / f"large.{ending}").touch()
        os.truncate(tmp_path / f"large.{ending}", 300 * 2**20)
        (tmp_path / f"deep.{ending}").write_text(("a = " if ending == "toml" else "") + "[" * 100_000)
    done = tcbench(tmp_path, *words)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert words[-1] in done.err
    assert "internal error" not in done.err
