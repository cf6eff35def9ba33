"""`tcbench diff` as a user meets it."""

import factories
import pytest
import timelines
from command import ended, next_step, tcbench

from tcbench.commands.profile import command as profile
from tcbench.core.record import Input
from tcbench.tracing import perfetto


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
    factories.write(tmp_path / "run.jsonl", factories.make_record(cell=cell))
    make = profile._planned
    monkeypatch.setattr(profile, "_planned", lambda *words: planned.append(make(*words)[1].cell) or 1 / 0)
    tcbench(tmp_path, *next_step(tcbench(tmp_path, "diff", "run.jsonl", "run.jsonl")))
    names = ("scenario", "config", "batch_size", "threads", *changes)
    assert [[getattr(record, name) for name in names] for record in planned] == [
        [getattr(cell, name) for name in names]
    ]


def test_of_a_step_whose_file_is_not_known_no_next_step_is_named(tmp_path):
    own_step = factories.make_cell(scenario="my_step", input=Input(kind="own"))
    factories.write(tmp_path / "run.jsonl", factories.make_record(cell=own_step))
    done = tcbench(tmp_path, "diff", "run.jsonl", "run.jsonl")
    assert (done.code, next_step(done)) == (0, [])


@pytest.mark.long
def test_two_profiles_tell_kernels(tmp_path):
    talk = timelines.talk()
    for name, slide in (("a", "15"), ("b", "17")):
        perfetto.write([talk[slide]], tmp_path / f"{name}.json.gz")
    done = ended(tmp_path, "diff", "a.json.gz", "b.json.gz")
    assert "Kernels and copies" in done.out and "one profile a side gives no interval" in done.out
