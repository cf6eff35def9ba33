"""`tcbench export` end to end, on records of real runs and on what is none."""

import json

import factories
import pandas
import pytest
import shipped
from command import tcbench

from tcbench.core import store


@pytest.mark.parametrize("per", ["trial", "cell", "step"])
def test_tables_of_real_runs_hold_every_trial_cell_or_step(tmp_path, per):
    pytest.importorskip("pyarrow")
    shipped.copy(tmp_path, ".jsonl")
    real = tmp_path / "results" / "amd-epyc-2cpu"
    records = store.read([real]).records
    commits = {(record.run_id, record.environment.commit) for record in records if record.environment}
    code = {run: frozenset(commit for run_id, commit in commits if run_id == run) for run, _ in commits}
    expected = {
        "trial": len(records),
        "cell": len({(record.cell.key, code[record.run_id]) for record in records}),
        "step": sum(record.measurement.timed_steps for record in records),
    }[per]
    assert tcbench(tmp_path, "export", real, "--per", per, "-o", "a.csv").out == "wrote a.csv\n"
    assert tcbench(tmp_path, "export", real, "--per", per, "-o", "a.parquet", "--format", "parquet").code == 0
    done = tcbench(tmp_path, "export", real, "--per", per, "--format", "json")
    rows = json.loads(done.out)["rows"]
    frames = [pandas.read_csv(tmp_path / "a.csv"), pandas.read_parquet(tmp_path / "a.parquet"), pandas.DataFrame(rows)]
    column = "step_time_s" if per == "step" else "images_per_s"
    for frame in frames:
        assert len(frame) == expected
        assert frame[column].astype(float).tolist() == pytest.approx([row[column] for row in rows])


def test_the_newest_run_is_the_default_and_ids_name_runs(tmp_path):
    factories.write(tmp_path / "results/m/cpu-1.jsonl", factories.make_record("fp16"))
    for words in ([], ["cpu-1"], ["results"], ["--out", str(tmp_path / "results")]):
        assert ",fp16," in tcbench(tmp_path, "export", *words).out


@pytest.mark.parametrize(
    ("name", "begins"), [("t.csv", b"machine,"), ("t.JSON", b"{"), ("t.parquet", b"PAR1"), ("t", b"machine,")]
)
def test_a_files_name_says_its_format(tmp_path, name, begins):
    if name == "t.parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow (uv run --extra parquet)")
    factories.write(tmp_path / "one.jsonl", factories.make_record())
    assert tcbench(tmp_path, "export", "one.jsonl", "-o", name).code == 0
    assert (tmp_path / name).read_bytes().startswith(begins)
