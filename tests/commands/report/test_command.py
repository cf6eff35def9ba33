"""`tcbench report` as a user meets it, on the committed records of real runs and on small made ones."""

import re
from pathlib import Path

import factories
import pytest
import timelines
from command import ended, tcbench

from tcbench.core.record import MeasureSettings
from tcbench.tracing import perfetto

RESULTS = Path(__file__).parents[3] / "results" / "amd-epyc-2cpu"
CPU, PEERS = RESULTS / "cpu-20261121-035658.jsonl", RESULTS / "peers-20261121-110639.jsonl"


def page(folder: Path) -> str:
    """The page that a report left beside the records."""
    (path,) = folder.rglob("*report.html")
    return path.read_text(encoding="utf-8")


@pytest.mark.long
def test_the_committed_records_make_a_page_of_moderate_size(tmp_path: Path) -> None:
    ended(tmp_path, "report", str(CPU), str(PEERS), "-o", "deep/er/all.html", "--title", "Two <cores>")
    page = tmp_path / "deep" / "er" / "all.html"
    assert page.stat().st_size < 500_000
    assert "<title>Two &lt;cores&gt;</title>" in page.read_text(encoding="utf-8")


def test_the_committed_example_is_of_this_form() -> None:
    text = (RESULTS / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', text)[:3] == ["summary", "throughput", "rungs"]
    assert (RESULTS / "report.html").stat().st_size < 500_000


def test_timelines_are_shown_that_were_named_or_lie_beside_the_records(tmp_path: Path) -> None:
    run = factories.write(tmp_path / "run" / "cpu.jsonl", factories.make_record())
    perfetto.write([timelines.busy_timeline(3)], tmp_path / "run" / "profile-fp32-bs4.json.gz")
    trace = tmp_path / "elsewhere.json"
    perfetto.write([timelines.busy_timeline(3)], trace)
    (tmp_path / "run" / "profile-broken.json.gz").write_bytes(b"no gzip")
    done = ended(tmp_path, "report", str(run), str(trace))
    assert done.err.startswith("note: ") and "profile-broken.json.gz" in done.err
    text = page(tmp_path)
    timelines_ = text.partition('<section id="timelines"')[2].partition("</figure>")[0]
    assert timelines_.count(">CPU</text>") == 2
    assert "profile-broken.json.gz" in text


def test_a_profile_of_other_settings_beside_the_records_is_not_shown_as_theirs(tmp_path: Path) -> None:
    run = factories.write(tmp_path / "cpu.jsonl", factories.make_record())
    for threads in (2, 1):
        profiled = factories.make_record(
            cell=factories.make_cell(threads=threads, measure=MeasureSettings(max_time_s=1))
        )
        perfetto.write([timelines.busy_timeline(3)], tmp_path / f"profile-threads{threads}.json.gz", profiled)
    done = tcbench(tmp_path, "report", str(run), "-o", "report.html")
    assert done.err.startswith("note: ") and "profile-threads1.json.gz: recorded with other settings" in done.err
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.partition('<section id="timelines"')[2].partition("</figure>")[0].count(">CPU</text>") == 1


def test_a_document_of_numerics_beside_the_records_answers_claims_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    document = next(RESULTS.glob("numerics-*.json"))
    (tmp_path / "cpu.jsonl").write_bytes(b"".join(CPU.read_bytes().splitlines(keepends=True)[:4]))
    pages = []
    for content in (document.read_bytes(), document.read_bytes()[:500]):
        (tmp_path / document.name).write_bytes(content)
        done = ended(tmp_path, "report", "cpu.jsonl")
        pages.append(page(tmp_path))
    assert [document.name in page for page in pages] == [True, False]
    assert f"note: left out: {document.name}" in done.err
    with_document = tcbench(tmp_path, "report", "cpu.jsonl", document.name)
    assert (with_document.code, len(with_document.err.splitlines())) == (2, 1)


def test_a_record_whose_phases_have_no_times_makes_a_page(tmp_path: Path) -> None:
    bare = factories.make_measurement(phases=factories.make_phases({"io": (), "forward": ()}))
    run = factories.write(tmp_path / "run.jsonl", factories.make_record(measurement=bare))
    ended(tmp_path, "report", str(run))
    assert tcbench(tmp_path, "timeline", str(run)).code == 2


def test_a_page_that_was_there_stays_whole_when_the_new_one_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "bad-report.html").write_text("old", encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text("{}\n", encoding="utf-8")
    assert tcbench(tmp_path, "report", "bad.jsonl").code == 2
    assert page(tmp_path) == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad-report.html", "bad.jsonl"]


def test_what_the_page_has_no_room_for_stands_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcbench.show.page.settings.MOST_TRIALS", 3)
    monkeypatch.setattr("tcbench.commands.report.trials.MOST_TRIALS", 3)
    factories.write(tmp_path / "r.jsonl", *factories.make_trials("fp32", trials=4))
    done = tcbench(tmp_path, "report", "r.jsonl", "-o", "pages/mine.html")
    assert (done.code, done.out) == (0, "wrote pages/mine.html and pages/mine-trials.csv\n")
    rows = (tmp_path / "pages/mine-trials.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 5
    factories.write(tmp_path / "few.jsonl", *factories.make_trials("fp32", trials=3))
    assert tcbench(tmp_path, "report", "few.jsonl").out == "wrote few-report.html\n"
    assert not (tmp_path / "few-report-trials.csv").exists()
