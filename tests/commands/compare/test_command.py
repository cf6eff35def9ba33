"""`tcbench compare` as a user meets it: verdicts become exit codes, whatever cannot be read is one clear line."""

import json
import shlex
from pathlib import Path

import factories
import msgspec
import pytest
from command import ended, next_step, tcbench

from tcbench.core import record
from tcbench.core.record import Record


def write(path: Path, records: list[Record]) -> Path:
    """The records of a run that is called as the file."""
    return factories.write(path, *(msgspec.structs.replace(trial, run_id=path.stem) for trial in records))


def trials(images_per_s: float = 40.0, config: str = "fp32", **changes) -> list[Record]:
    return factories.make_trials(config, images_per_s=images_per_s, **changes)


@pytest.fixture
def base(tmp_path) -> Path:
    """A run; `again.jsonl` beside it has the same figures."""
    write(tmp_path / "again.jsonl", trials())
    return write(tmp_path / "base.jsonl", trials())


def moved(records: list[Record], **facts: str) -> list[Record]:
    """The same trials where facts of the environment are others."""
    environment = factories.make_environment(**facts)
    return [msgspec.structs.replace(trial, environment=environment) for trial in records]


# What is decided


@pytest.mark.parametrize(
    ("images_per_s", "code", "verdict"), [(40.0, 0, "pass"), (36.0, 1, "regression"), (44.0, 0, "improved")]
)
def test_a_verdict_is_an_exit_code(base, tmp_path, images_per_s, code, verdict):
    write(tmp_path / "current.jsonl", trials(images_per_s, seed=1))
    done = tcbench(tmp_path, "compare", "base.jsonl", "current.jsonl", "--strict")
    assert done.code == code, done
    assert f"\n1 {verdict} at a threshold of 3%\n" in done.out
    assert done.err == ""


def test_a_regression_names_the_command_that_takes_it_apart(base, tmp_path):
    write(tmp_path / "current.jsonl", trials(36.0, seed=1) + trials(30.0, "fp16"))
    write(base, trials() + trials(40.0, "fp16"))
    done = tcbench(tmp_path, "compare", "base.jsonl", "current.jsonl")
    assert next_step(done) == ["diff", "base.jsonl", "current.jsonl", "--config", "fp16", "--bs", "4"]
    done = ended(tmp_path, *next_step(done))
    assert "step 100 ms -> 13" in done.out
    assert not next_step(tcbench(tmp_path, "compare", "base.jsonl", "again.jsonl"))


@pytest.mark.parametrize(("commit", "same"), [("1a2b", True), ("3c4d", False)])
def test_two_runs_of_the_same_code_are_said_to_be(tmp_path, commit, same):
    write(tmp_path / "base.jsonl", moved(trials(), commit="1a2b"))
    write(tmp_path / "current.jsonl", moved(trials(36.0, seed=1), commit=commit))
    done = tcbench(tmp_path, "compare", "base.jsonl", "current.jsonl")
    assert ("base and current are the same code: any difference comes from the machine" in done.out) is same
    assert done.code == 1


def test_a_missing_cell_fails_unless_allowed_and_a_new_one_never_does(tmp_path):
    write(tmp_path / "two.jsonl", trials() + trials(config="fp16"))
    write(tmp_path / "one.jsonl", trials())
    done = ended(tmp_path, "compare", "two.jsonl", "one.jsonl", code=1)
    assert "fp16, batch size 4: missing: not in current; base: ok" in done.out
    allowed = tcbench(tmp_path, "compare", "two.jsonl", "one.jsonl", "--allow", "missing")
    assert (allowed.code, "1 missing" in allowed.out) == (0, True)
    assert tcbench(tmp_path, "compare", "one.jsonl", "two.jsonl", "--strict").code == 0


def test_nothing_measured_on_both_sides_is_never_green(tmp_path):
    broken = [factories.make_record(status="failed", reason="ModuleNotFoundError: no module")]
    for name in ("a", "b"):
        write(tmp_path / f"broken-{name}.jsonl", broken)
        write(tmp_path / f"half-{name}.jsonl", [*trials(config="fp16"), *broken])
    done = ended(tmp_path, "compare", "broken-a.jsonl", "broken-b.jsonl", code=5)
    assert "nothing was measured on both sides: failed on both sides: ModuleNotFoundError: no module" in done.err
    half = ("compare", "half-a.jsonl", "half-b.jsonl")
    assert (tcbench(tmp_path, *half).code, tcbench(tmp_path, *half, "--strict").code) == (0, 4)


def test_the_same_trials_on_both_sides_are_not_comparable(base, tmp_path):
    (tmp_path / "copy.jsonl").write_bytes(base.read_bytes())
    more = write(tmp_path / "more.jsonl", trials(config="fp16"))
    more.write_bytes(more.read_bytes() + base.read_bytes())
    assert tcbench(tmp_path, "baseline", "set", "main", "base.jsonl").code == 0
    for words, message in (
        (("base.jsonl", "./base.jsonl"), "all trials of ./base.jsonl are also in base.jsonl"),
        (("base.jsonl", "copy.jsonl", "--allow", "all"), "all trials of copy.jsonl are also in base.jsonl"),
        (("base.jsonl", "more.jsonl"), "8 trials of more.jsonl are also in base.jsonl"),
        (("--baseline", "main", "base.jsonl"), "all trials of base.jsonl are also in baseline main"),
    ):
        done = tcbench(tmp_path, "compare", *words)
        assert (done.code, done.out) == (5, "")
        assert f"{message}; expected trials of another run" in done.err
    assert tcbench(tmp_path, "report", "copy.jsonl", "--compare", "base.jsonl").code == 5


def test_where_to_write_is_looked_at_before_and_verdicts_are_shown_in_any_case(base, tmp_path):
    words = ("compare", "base.jsonl", "again.jsonl", "--format")
    assert tcbench(tmp_path, *words, "markdown", "-o", "made/out.md").code == 0
    assert (tmp_path / "made" / "out.md").read_text().startswith("### tcbench")
    done = tcbench(tmp_path, *words, "github", GITHUB_STEP_SUMMARY=str(tmp_path / "no" / "summary"))
    assert (done.code, "note: no job summary: " in done.err) == (0, True)
    assert "1 pass" in done.out


# What may be compared


def test_what_differs_is_listed_with_the_command_that_allows_it(base, tmp_path):
    packages = {"chainer": "7.8.1", "numpy": "2.3.0", "scipy": "1.15"}
    write(tmp_path / "new results.jsonl", moved(trials(seed=1), packages=packages, python="3.12.0"))
    words = ("compare", "base.jsonl", "new results.jsonl", "--threshold", "5%", "--strict", "--allow")
    done = tcbench(tmp_path, *words, "input")
    assert (done.code, done.out) == (5, "")
    lines = done.err.splitlines()
    assert lines[0] == "tcbench: error: base.jsonl and new results.jsonl did not measure the same thing:"
    assert [line.split() for line in lines[1:-2]] == [
        ["python", "python:", "3.11.2", "->", "3.12.0"],
        ["libraries", "numpy:", "2.2.0", "->", "2.3.0"],
        ["libraries", "scipy:", "none", "->", "1.15"],
    ]
    command = "tcbench compare base.jsonl 'new results.jsonl' --threshold 5% --strict --allow python,libraries,input"
    assert lines[-1].strip() == command
    again = ended(tmp_path, *shlex.split(command)[1:])
    assert "allowed to differ: libraries: numpy: 2.2.0 -> 2.3.0; scipy: none -> 1.15" in again.out


def test_all_allows_everything_but_what_is_missing(tmp_path):
    write(tmp_path / "base.jsonl", trials() + trials(config="fp16"))
    other = [msgspec.structs.replace(trial, cell=factories.make_cell(threads=4, seed=1)) for trial in trials()]
    write(tmp_path / "current.jsonl", moved(other, os="other", machine="other", device_name="H200"))
    assert tcbench(tmp_path, "compare", "base.jsonl", "current.jsonl", "--allow", "settings").code == 5
    assert tcbench(tmp_path, "compare", "base.jsonl", "current.jsonl", "--allow", "all").code == 1
    assert tcbench(tmp_path, "compare", "base.jsonl", "current.jsonl", "--allow", "all,missing").code == 0


def test_nothing_in_common_is_not_comparable(base, tmp_path):
    write(tmp_path / "current.jsonl", trials(config="fp16"))
    done = ended(tmp_path, "compare", "base.jsonl", "current.jsonl", "--allow", "all,missing", code=5)
    assert "have nothing in common" in done.err
    assert "base.jsonl has fp32, batch size 4\n" in done.err
    assert "current.jsonl has fp16, batch size 4\n" in done.err


# What is given


def test_runs_are_named_by_file_folder_or_id(tmp_path):
    write(tmp_path / "results/m/cpu-20260101-000000.jsonl", trials())
    write(tmp_path / "results/m/cpu-20260102-000000.jsonl", trials(seed=1))
    write(tmp_path / "old/a.jsonl", trials(trials=4))
    write(tmp_path / "old/b.jsonl", [msgspec.structs.replace(r, run_id="b") for r in trials(trials=4, seed=2)])
    assert tcbench(tmp_path, "compare", "cpu-20260101-000000", "cpu-20260102-000000").code == 0
    assert tcbench(tmp_path, "compare", "old", "results/m/cpu-20260102-000000.jsonl").code == 0
    done = ended(tmp_path, "compare", "cpu-20260101-000001", "cpu-20260102-000000", code=2)
    assert "did you mean 'cpu-20260101-000000'?" in done.err


def test_a_baseline_stands_in_the_base_s_place(tmp_path):
    write(tmp_path / "results/baselines/main.jsonl", trials())
    newest = write(tmp_path / "results/m/cpu-20260102-000000.jsonl", trials(36.0, seed=1))
    assert tcbench(tmp_path, "compare", "--baseline", "main").code == 1
    assert "base baseline main, current cpu-20260102-000000" in tcbench(tmp_path, "compare", "--baseline", "main").out
    assert tcbench(tmp_path, "compare", "--baseline", "main", newest).code == 1
    unknown = tcbench(tmp_path, "compare", "--baseline", "mian")
    assert (unknown.code, "did you mean 'main'?" in unknown.err) == (2, True)
    twice = tcbench(tmp_path, "compare", "--baseline", "main", newest, newest)
    assert (twice.code, "replaces BASE: expected only CURRENT" in twice.err) == (2, True)


# What cannot be read


def measured(trial: Record | None = None, **changes) -> str:
    raw = json.loads(record.encode(trial or factories.make_record()))
    raw["measurement"] |= changes
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (measured(last_loss=float("nan")).encode() + b"\n", ":1: not JSON"),
        (measured(last_loss=0).replace('"last_loss": 0', '"last_loss": 1e999').encode() + b"\n", ":1: not JSON"),
        (measured(step_times_s=[5e-324] * 12).encode() + b"\n", ":1: not a valid record"),
        (measured(peak_memory_bytes=10**400).encode() + b"\n", ":1: not a valid record"),
        (measured(peak_memory_bytes=-5).encode() + b"\n", ":1: not a valid record"),
        (measured(phases=[{"name": "io", "host_s": [1e308]}]).encode() + b"\n", ":1: not a valid record"),
        (b"\x7fELF\x00\x01\xff\xfe" * 99, ":1: not JSON"),
        (b"[" * 100_000 + b"\n", ":1: not JSON"),
        (b'{"a":' * 100_000 + b"\n", ":1: not JSON"),
        (record.encode(factories.make_record()) + b"\n" + b"oops\n", ":2: not JSON"),
    ],
)
def test_what_is_no_record_is_named_with_file_and_line(base, tmp_path, content, expected):
    (tmp_path / "bad.jsonl").write_bytes(content)
    for words in (("base.jsonl", "bad.jsonl"), ("bad.jsonl", "base.jsonl")):
        done = ended(tmp_path, "compare", *words, code=2)
        assert f"tcbench: error: bad.jsonl{expected}" in done.err
        assert (done.err.count("\n"), done.out) == (1, "")


@pytest.mark.parametrize(
    "changes",
    [
        {"step_times_s": [1e-9] * 12},
        {"step_times_s": [1e9, 1e-9] * 6},
        {"peak_memory_bytes": 0},
        {"warmup_loss": -1e308},
        {"phases": []},
        {"phases": [{"name": "io", "host_s": []}]},
        {"phases": [{"name": "io", "host_s": [0.0, 0.0]}]},
        {"phases": [{"name": "io", "host_s": [-1e9, 1e9]}, {"name": "io", "host_s": [1e9]}]},
        {"phases": [{"name": "x", "host_s": [1e9], "device_s": [1e9]}] * 3},
        {"phases": [{"name": "", "host_s": [0.1], "device_s": []}]},
    ],
)
@pytest.mark.parametrize("format_", ["table", "json", "junit"])
def test_a_measurement_out_of_this_world_ends_in_words(base, tmp_path, changes, format_):
    odd = [measured(trial, **changes) for trial in trials(seed=1)]
    believed = record.reject_contradiction(record.decode(odd[0])).status == "ok"
    (tmp_path / "odd.jsonl").write_text("\n".join(odd) + "\n")
    (tmp_path / "odder.jsonl").write_text("\n".join(odd).replace("cpu-2025", "cpu-2026") + "\n")
    options = ("--metric", "throughput,memory,energy", "--format", format_)
    for words in (("base.jsonl", "odd.jsonl"), ("odd.jsonl", "base.jsonl"), ("odd.jsonl", "odder.jsonl")):
        done = tcbench(tmp_path, "compare", *words, *options)
        assert done.code in ((0, 1) if believed else (1, 5)), done


# What is written


def test_github_gets_annotations_and_a_job_summary(base, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    write(tmp_path / "current.jsonl", trials(36.0, seed=1))
    variables = {"GITHUB_STEP_SUMMARY": str(summary)}
    done = ended(tmp_path, "compare", "base.jsonl", "current.jsonl", "--format", "github", **variables, code=1)
    assert done.out.startswith("::error title=tcbench%3A regression::fp32, batch size 4: throughput -")
    assert summary.read_text().startswith("before\n### tcbench: regression\n")
    tcbench(tmp_path, "compare", "base.jsonl", "current.jsonl", "--format", "json", **variables)
    assert summary.read_text().count("###") == 1


def test_of_thousands_of_differences_a_few_are_listed(base, tmp_path):
    many = factories.make_environment(packages={f"package-{n}": "1" for n in range(3000)})
    write(tmp_path / "current.jsonl", trials(seed=1, environment=many))
    done = tcbench(tmp_path, "compare", "base.jsonl", "current.jsonl")
    assert (done.code, done.err.count("\n")) == (5, 24)
    assert "\n  and 2982 more\n" in done.err
    allowed = tcbench(tmp_path, "compare", "base.jsonl", "current.jsonl", "--allow", "all")
    assert len(allowed.out) < 5000
