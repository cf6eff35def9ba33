"""`tcbench diff` as a user meets it."""

import json

import factories
import msgspec
import pytest
import timelines
from command import next_step, tcbench

from tcbench.commands import profile
from tcbench.core.record import Input
from tcbench.core.store import Store
from tcbench.tracing import perfetto


@pytest.fixture
def runs(tmp_path):
    """Two runs of two cells, the second slower; and each with a cell of its own."""

    def write(name, rate, *others):
        with Store(tmp_path / name) as store:
            for config, size in (("fp32", 4), ("fp32", 8), *others):
                for trial in range(3):
                    store.append(factories.make_record(config, size, trial=trial, images_per_s=rate))

    write("before.jsonl", 40.0, ("fp32+dali", 4))
    write("after.jsonl", 36.0, ("fp16", 4))
    return tmp_path


def test_it_shares_the_change_out_and_names_the_rest(runs):
    done = tcbench(runs, "diff", "before.jsonl", "after.jsonl")
    assert done.code == 0, done.err
    assert done.out.count("step 100 ms -> 111 ms: +11") == 1
    assert done.out.count("step 200 ms -> 222 ms: +22") == 1
    assert "outside of phases" in done.out
    assert "fp32+dali, batch size 4: only in before.jsonl" in done.out


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "resnet18", "image_size": 32, "threads": 1},
        {"scenario": "naruse2018", "device": "virtual:V100", "image_size": 224, "host_speed": 2.0},
    ],
)
def test_the_next_step_profiles_the_very_cell(tmp_path, monkeypatch, changes):
    planned, cell = [], factories.make_cell(**changes)
    with Store(tmp_path / "run.jsonl") as store:
        store.append(factories.make_record(cell=cell))
    make = profile._planned
    monkeypatch.setattr(profile, "_planned", lambda *words: planned.append(make(*words)[1].cell) or 1 / 0)
    tcbench(tmp_path, *next_step(tcbench(tmp_path, "diff", "run.jsonl", "run.jsonl")))
    names = ("scenario", "config", "batch_size", "threads", *changes)
    assert [[getattr(one, name) for name in names] for one in planned] == [[getattr(cell, name) for name in names]]


def test_of_a_step_whose_file_is_not_known_no_next_step_is_named(tmp_path):
    own = msgspec.structs.replace(factories.make_cell(), scenario="my_step", input=Input(kind="own"))
    with Store(tmp_path / "run.jsonl") as store:
        store.append(factories.make_record(cell=own))
    done = tcbench(tmp_path, "diff", "run.jsonl", "run.jsonl")
    assert (done.code, next_step(done)) == (0, [])


def test_json_has_every_part_and_its_shares_add_up_to_one(runs):
    done = tcbench(runs, "diff", "before.jsonl", "after.jsonl", "--config", "fp32", "--bs", "8", "--json")
    told = json.loads(done.out)
    assert (told["schema"], told["schema_version"], done.err) == ("tcbench-diff", 1, "")
    (cell,) = told["cells"]
    (level,) = cell["levels"]
    assert cell["step"]["decided"]
    assert sum(part["share"] for part in (*level["parts"], level["rest"])) == pytest.approx(1)
    assert level["parts"][0]["name"] == "backward"
    assert level["parts"][0]["change_interval_s"]["low"] > 0


def test_two_configs_of_one_run_are_set_beside_each_other_with_a_picture(runs):
    done = tcbench(runs, "diff", "before.jsonl", "--config", "fp32", "--to", "fp32+dali", "--bs", "4", "-o", "diff.png")
    assert done.code == 0, done.err
    assert "fp32+dali, batch size 4 on AMD EPYC (3 trials" in done.out
    assert "may not have changed at all" in done.out
    assert (runs / "diff.png").stat().st_size > 10_000


def test_two_profiles_tell_kernels(tmp_path):
    talk = timelines.talk()
    for name, slide in (("a", "15"), ("b", "17")):
        perfetto.write([talk[slide]], tmp_path / f"{name}.json.gz")
    done = tcbench(tmp_path, "diff", "a.json.gz", "b.json.gz", "--top", "9", "-o", "diff.svg")
    assert done.code == 0, done.err
    assert "Kernels and copies" in done.out
    assert "one profile a side has no interval" in done.out
    assert "idle in " in done.out
    assert (tmp_path / "diff.svg").exists()
