import csv
import io
import json
import sys

import factories
import msgspec
import pandas
import pytest

from tcbench.commands.export import formats as export
from tcbench.core.errors import SelectionError


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def elsewhere(records, machine="other"):
    environment = factories.make_environment(machine=machine)
    return [msgspec.structs.replace(record, environment=environment) for record in records]


MANY = [
    *factories.make_trials("fp32", trials=3),
    *factories.make_trials("fp16", 8, trials=2),
    factories.make_record("big", status="oom"),
    factories.make_record("never", status="skipped"),
]


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1", "＋1", "－1", "＠1"]
)
def test_no_text_of_a_table_is_a_formula(text):
    row = table(export.to_csv([factories.make_record(text, status="failed", reason=text)], "trial"))[0]
    text = text.replace("\r", "\n")  # which a reader of CSV knows within quotes
    assert row["config"] == row["reason"] == f"'{text}"
    odd = factories.make_measurement(phases=(msgspec.structs.replace(MANY[0].measurement.phases[0], name=text),))
    header = next(csv.reader(io.StringIO(export.to_csv([factories.make_record(measurement=odd)], "trial"))))
    assert f"'{text}_host_s" in header
    assert not any(name.startswith(("=", "+", "-", "@")) for name in header)


def test_a_negative_number_stays_one():
    measurement = factories.make_measurement(last_loss=-1.5)
    assert table(export.to_csv([factories.make_record(measurement=measurement)], "trial"))[0]["last_loss"] == "-1.5"


@pytest.mark.parametrize("per", ["trial", "cell", "step"])
def test_parquet_comes_back_with_types(per):
    pytest.importorskip("pyarrow")
    frame = pandas.read_parquet(io.BytesIO(export.to_parquet(MANY, per)))
    assert len(frame) == len(export.table(MANY, per)[1])
    assert str(frame["batch_size"].dtype) == "Int64"
    if per == "trial":
        assert str(frame["duration_s"].dtype) == "Float64"  # whole seconds too
        assert str(frame["warmup_settled"].dtype) == "boolean"
        assert frame["images_per_s"].isna().tolist() == [False] * 5 + [True] * 2
        assert frame["driver"].isna().all()


def test_parquet_without_its_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SelectionError, match=r"needs the package pyarrow: uv sync --extra parquet"):
        export.to_parquet(MANY, "trial")


def test_an_interval_without_end_is_null():
    times_s = [0.1, 0.1]  # one counts, which tells nothing of how steps differ
    record = factories.make_record(measurement=factories.make_measurement(times_s))
    (row,) = json.loads(export.to_json([record], "cell"))["rows"]
    assert row["images_per_s_high"] is None
    (measures,) = json.loads(export.to_bencher([record])).values()
    assert "upper_value" not in measures["images-per-second"]
    assert json.loads(export.to_github_action_benchmark([record]))[0]["range"] == "± >100%"


@pytest.mark.parametrize("form", [export.to_github_action_benchmark, export.to_bencher])
def test_names_are_unique_with_several_machines_and_inputs_and_stay_the_same(form):
    cells = [
        factories.make_cell(),
        factories.make_cell(image_size=96),
        factories.make_cell(threads=4),
        factories.make_cell(input=msgspec.structs.replace(factories.make_cell().input, kind="folder", path="/data")),
    ]
    local = [factories.make_record(cell=cell) for cell in cells]
    exported = json.loads(form([*local, *elsewhere(local)]))
    names = list(exported) if isinstance(exported, dict) else [entry["name"] for entry in exported]
    assert len(set(names)) == len(names) == 8
    alone = json.loads(form(elsewhere(local[1:2])))
    assert (next(iter(alone)) if isinstance(alone, dict) else alone[0]["name"]) in names


def test_a_name_is_never_longer_than_bencher_takes():
    records = [factories.make_record("x" * 3000), factories.make_record("x" * 3000 + "y")]
    exported = json.loads(export.to_bencher(records))
    assert len(exported) == 2
    assert all(len(name) <= 1024 for name in exported)


def test_bencher_gets_the_unit_of_a_step_of_ones_own():
    record = factories.make_record(cell=factories.make_cell(backend="mine:make", unit="token pairs"))
    (measures,) = json.loads(export.to_bencher([record])).values()
    assert set(measures) == {"token-pairs-per-second", "step-time-seconds", "peak-memory-bytes"}


def test_cells_that_a_service_does_not_get_are_named():
    failed = factories.make_record("fp16", status="failed", reason="no", measurement=None)
    assert export.missing_line([factories.make_record()]) is None
    line = export.missing_line([factories.make_record(), failed])
    assert line == f"note: left out because they were not measured: {failed.cell.label} (failed)"
    many = [factories.make_record(f"c{n}", status="failed", reason="no", measurement=None) for n in range(7)]
    assert export.missing_line(many).endswith(" and 2 more")
