import json
from pathlib import Path

import factories
import msgspec
import pytest

from tcbench.core import record
from tcbench.core.record import Cell, GpuSample, GpuSamples, GpuState, Input, RecordError

RESULTS = Path(__file__).parents[2] / "results"


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
        (changed(schema_version=0), "unknown schema version 0"),
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


def test_a_cells_key_changes_with_every_field():
    cell = factories.make_cell()
    other_statuses = {
        "batch_size": 5,
        "image_size": 65,
        "seed": 1,
        "threads": 9,
        "config": "fp16",
        "device": "cuda:0",
        "measure": msgspec.structs.replace(cell.measure, target=0.5),
        "train": msgspec.structs.replace(cell.train, loss_scale=2.0),
    }
    keys = {cell.key} | {msgspec.structs.replace(cell, **{name: value}).key for name, value in other_statuses.items()}
    assert len(keys) == 1 + len(other_statuses)


def gpu_samples(**changes):
    """A second of warm-up at 80 W, two timed ones at 600 W, and one after."""
    samples = (
        GpuSample(0.5, 345, 2619, 80.0, 30, 0x1, 0, 2**30, 0.0),
        GpuSample(1.0, 1980, 2619, 600.0, 50, 0x0, 99, 9 * 2**30, 100.0),
        GpuSample(2.0, 1755, 2619, 700.0, 60, 0x24, 99, 8 * 2**30, 750.0),
        GpuSample(2.5, None, None, 90.0, 60, None, 0, 2**30, 800.0),
    )
    return msgspec.structs.replace(GpuSamples(state=GpuState(power_limit_w=700.0), samples=samples), **changes)


def test_a_sample_of_a_later_tcbench_may_be_longer_and_of_an_earlier_shorter():
    raw = json.loads(record.encode(factories.make_record(gpu=gpu_samples())))
    raw["gpu"]["samples"] = [[0.5, 345], [0.6, 345, 2619, 80.0, 30, 1, 0, 1024, 0.0, "new"]]
    assert [s.sm_clock_mhz for s in record.decode(json.dumps(raw)).gpu.samples] == [345, 345]


def test_a_record_without_a_gpu_is_read_as_before_and_an_unknown_field_is_ignored():
    raw = json.loads(changed(extra=1))
    del raw["gpu"]
    del raw["environment"]["gpu"]
    assert record.decode(json.dumps(raw)) == factories.make_record()


def test_what_a_gpu_did_while_timed_is_kept_apart_from_the_rest_and_throttle_masks_have_names():
    seen = gpu_samples(timed_from_s=0.9, timed_to_s=2.1)
    assert [sample.power_w for sample in seen.timed] == [600.0, 700.0]
    assert gpu_samples().timed == ()
    assert seen.energy_j == 800.0
    assert gpu_samples(samples=(GpuSample(0.0),)).energy_j is None
    assert record.throttle_reasons(0) == ()
    assert record.throttle_reasons(0x24) == ("software power cap", "software thermal slowdown")
    assert record.throttle_reasons(0x801) == ("idle", "bit 0x800")


def test_the_rate_of_a_modelled_input_is_a_part_of_the_cell_and_no_other_cell_has_the_field():
    assert msgspec.json.encode(Input(kind="synthetic")) == b'{"kind":"synthetic","path":null}'
    slow, fast = (factories.make_cell(input=Input(kind="modelled", images_per_s=rate)) for rate in (1e3, 2e3))
    assert slow.key != fast.key
    assert msgspec.json.decode(msgspec.json.encode(slow), type=Cell) == slow


def test_a_config_of_thousands_of_rungs_is_no_record():
    """Commands compare rungs pair by pair: 66 such records held `explain` up for a minute."""
    line = record.encode(factories.make_record()).replace(b'"rungs":["', b'"rungs":["' + b'x","' * 3000)
    with pytest.raises(record.RecordError, match="length <= 64"):
        record.decode(line)


_KEYS = [
    ("cpu-20261121-035658.jsonl", 0, "0160efd93be22020"),
    ("cpu-20261121-035658.jsonl", 10, "7b02216e576d5de0"),
    ("cpu-20261123-025926.jsonl", 0, "58de950bac93e3fd"),
    ("cpu-20261123-025926.jsonl", 75, "0a3bc5a6909944f2"),
    ("cpu-20261123-033953_kfac.jsonl", 0, "cda8ab7e7c41f5ca"),
    ("cpu-20261123-033953_kfac.jsonl", 3, "61242d141e37a631"),
    ("cpu-20261123-164014.jsonl", 0, "58de950bac93e3fd"),
    ("cpu-20261123-164014.jsonl", 30, "e34a94e2ccf91a89"),
    ("cpu-20261124-132901.jsonl", 0, "263153224bad6097"),
    ("cpu-20261124-132901.jsonl", 33, "58f55733dc5b21ae"),
    ("networks-20261123-034519.jsonl", 0, "ec8e2c5f3b52c05f"),
    ("networks-20261123-034519.jsonl", 40, "914f915e3401501e"),
    ("peers-20261121-110639.jsonl", 0, "6777b70276898266"),
    ("peers-20261121-110639.jsonl", 15, "04b0820b6869f33d"),
    ("peers-20261123-040216.jsonl", 0, "6af5e5a4037c07de"),
    ("peers-20261123-040216.jsonl", 10, "6af5e5a4037c07de"),
    ("beyond-20261127-001002_graphs.jsonl", 0, "2a5080180083c6f3"),
    ("beyond-20261127-001002_graphs.jsonl", 1, "f25975bbd98663d7"),
    ("naruse2018-20261126-235859.jsonl", 0, "4a23e9870581c153"),
    ("naruse2018-20261126-235859.jsonl", 3, "111dd94a46d4457d"),
    ("naruse2018-20261127-000756_ladder.jsonl", 0, "0628b0884024a716"),
    ("naruse2018-20261127-000756_ladder.jsonl", 4, "fa83176b25f68745"),
]


@pytest.mark.parametrize(("name", "number", "key"), _KEYS)
def test_the_keys_of_shipped_records_stay(name, number, key):
    """The first and the sixth file have no `host_speed` in their cells, all others have it."""
    (file,) = RESULTS.glob(f"*/{name}")
    assert record.decode(file.read_text("utf-8").splitlines()[number]).cell.key == key


@pytest.mark.parametrize("first", [0, 1], ids=["defaults first", "decoded first"])
def test_equal_cells_have_one_key(first):
    """Whatever objects their fields hold, and whichever was asked first: msgspec leaves out a default by identity."""
    built = factories.make_cell(unit="images", host_speed=1.0)
    train = msgspec.structs.replace(built.train, loss_scale=128)
    decoded = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(built) | {"unit": "images", "host_speed": 1}))
    other = msgspec.structs.replace(msgspec.convert(decoded, Cell), train=train)
    record._key.cache_clear()
    assert built == other
    keys = [cell.key for cell in ((built, other) if first else (other, built))]
    record._key.cache_clear()
    assert {*keys, built.key} == {keys[0]}
    record._key.cache_clear()
    assert other.key == keys[0]
