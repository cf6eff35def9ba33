from __future__ import annotations

import json

import factories
import msgspec
import pytest

from tcbench import record
from tcbench.record import RecordError


def test_a_record_survives_its_json_line():
    original = factories.make_record("fp16+dali", 8)
    line = record.encode(original)
    assert b"\n" not in line
    assert record.decode(line) == original


def test_the_first_step_of_each_block_is_stored_but_not_counted():
    measured = factories.make_measurement([9.0, 1.0, 2.0, 9.0, 3.0, 4.0], block_steps=3)
    assert measured.counted_times_s == (1.0, 2.0, 3.0, 4.0)
    assert measured.timed_steps == 6


def changed(**fields):
    return json.dumps(json.loads(record.encode(factories.make_record())) | fields)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "not JSON"),
        ("[]", "not a tcbench record (no schema_version)"),
        ("{}", "not a tcbench record (no schema_version)"),
        ('{"schema_version": "1"}', "not a tcbench record (no schema_version)"),
        ('{"schema_version": 1}', "not a valid record"),
        (changed(schema_version=99), "schema version 99 is newer than this tcbench reads"),
        (changed(schema_version=0), "schema version 0 is not known"),
        (changed(status="fine"), "not a valid record"),
        (changed(measurement=None), "a record that is ok needs a measurement"),
        (changed(status="failed"), "a record that is failed needs a reason"),
        (changed(trial="x"), "$.trial"),
    ],
)
def test_what_is_not_a_record_is_refused_by_name(line, expected):
    with pytest.raises(RecordError) as error:
        record.decode(line)
    assert expected in str(error.value)


@pytest.mark.parametrize("step_times_s", [[], [0.1], [0.1, 0.0], [0.1, -1.0], [0.1, 1e400]])
def test_an_ok_record_has_counted_steps_that_took_time(step_times_s):
    raw = json.loads(record.encode(factories.make_record()))
    raw["measurement"]["step_times_s"] = step_times_s
    with pytest.raises(RecordError):
        record.decode(json.dumps(raw))


def test_unknown_fields_of_the_same_version_are_ignored():
    assert record.decode(changed(extra=1)) == factories.make_record()


def test_an_older_version_is_brought_up_to_date_step_by_step(monkeypatch):
    monkeypatch.setattr(record, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(
        record,
        "UPGRADES",
        {
            1: lambda raw: {**raw, "reason": "one"},
            2: lambda raw: {**raw, "reason": raw["reason"] + " two"},
        },
    )
    upgraded = record.decode(changed(reason=None))
    assert (upgraded.reason, upgraded.schema_version) == ("one two", 3)


def test_every_older_version_has_an_upgrade():
    assert set(record.UPGRADES) == set(range(1, record.SCHEMA_VERSION))


def test_a_cells_key_changes_with_every_field():
    cell = factories.make_cell()
    others = {
        "batch_size": 5,
        "image_size": 65,
        "seed": 1,
        "threads": 9,
        "config": "fp16",
        "device": "cuda:0",
        "measure": msgspec.structs.replace(cell.measure, target=0.5),
        "train": msgspec.structs.replace(cell.train, loss_scale=2.0),
    }
    keys = {cell.key} | {msgspec.structs.replace(cell, **{name: value}).key for name, value in others.items()}
    assert len(keys) == 1 + len(others)
