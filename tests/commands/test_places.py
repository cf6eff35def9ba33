"""Pictures and pages without -o: beside their records, or in the working folder, which is said."""

import factories
import pytest
from command import tcbench


@pytest.fixture
def runs(tmp_path):
    for name in ("a/one", "a/two", "b/three"):
        factories.write(tmp_path / f"{name}.jsonl", *factories.make_trials(trials=2))
    return tmp_path


SEVERAL = (
    "note: the results are from several folders, so throughput.png is written to the working folder; "
    "choose another file with -o"
)


@pytest.mark.parametrize(
    ("words", "left", "note"),
    [
        (("plot", "a/one.jsonl"), "a/one-throughput.png", ""),
        (("plot", "a/one.jsonl", "a/two.jsonl"), "a/throughput.png", ""),
        (("report", "a"), "a/report.html", ""),
        (("report", "a/one.jsonl"), "a/one-report.html", ""),
        (("plot", "a/one.jsonl", "b/three.jsonl"), "throughput.png", SEVERAL),
    ],
)
def test_they_are_beside_the_results_of_one_folder_and_of_several_in_the_working_folder(runs, words, left, note):
    done = tcbench(runs, *words)
    assert (done.code, done.out, note in done.err) == (0, f"wrote {left}\n", True), done.err
    assert (runs / left).exists()


def test_those_of_a_folder_that_takes_no_files_are_in_the_working_folder(runs, monkeypatch):
    monkeypatch.setattr("tcbench.show.results.os.access", lambda path, mode: str(path) != "a")
    done = tcbench(runs, "report", "a/one.jsonl")
    assert (done.code, done.out) == (0, "wrote report.html\n"), done.err
    assert "note: a is not writable, so report.html is written to the working folder" in done.err
    assert sorted(path.name for path in (runs / "a").iterdir()) == ["one.jsonl", "two.jsonl"]
