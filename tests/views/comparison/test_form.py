from __future__ import annotations

import json
from dataclasses import replace

import factories
import msgspec
import pytest
from comparisons import NASTY, named, nasty, one_of_each

from tcbench.analysis.compare import compare
from tcbench.analysis.welch import Group, Unpaired
from tcbench.core.text import plain
from tcbench.present.sides import Labels
from tcbench.views.comparison.form import to_json


def test_it_says_what_was_decided_and_from_what():
    found = json.loads(to_json(one_of_each(), Labels("v1", "v2")))
    assert (found["schema"], found["schema_version"]) == ("tcbench-comparison", 2)
    assert (found["base"], found["current"], found["threshold"], found["failing"]) == ("v1", "v2", 0.03, True)
    cells = {cell["config"]: cell for cell in found["cells"]}
    slower = cells["slower"]
    assert slower["metric"] == {"name": "throughput", "unit": "images/s", "more_is_better": True}
    assert 0.88 < slower["ratio"]["low"] < slower["ratio"]["value"] < slower["ratio"]["high"] < 0.92
    assert slower["culprit"] == "backward"
    assert [phase["name"] for phase in slower["phases"]] == ["io", "forward", "backward", "update"]
    assert len(slower["base"]["figures"]) == slower["base"]["trials_ok"] == 8
    assert cells["lost"]["current"] is None and cells["lost"]["failing"]
    assert cells["vague"]["more_trials_a_side"] > 1
    assert cells["broken"]["current"]["status"] == "oom"
    assert found["geometric_means"][0]["cells"] == 4


def test_an_interval_without_end_is_null():
    comparison = compare(factories.make_trials(), factories.make_trials(seed=1))
    endless = replace(comparison.cells[0], estimate=Unpaired(Group(2, 0.0, 1e9), Group(2, 0.0, 1e9)))
    (cell,) = json.loads(to_json(replace(comparison, cells=(endless,))))["cells"]
    assert cell["ratio"] == {"value": 1.0, "low": 0.0, "high": None}


@pytest.mark.parametrize("text", NASTY)
def test_text_comes_back_as_it_was_read(text):
    value = json.loads(to_json(nasty(text), named(text)))
    assert plain(text) in [cell["config"] for cell in value["cells"]]
    assert value["base"] == plain(text)
    assert any(one["current"] == plain(text) for one in value["differences"])


def test_names_are_unique():
    cells = [factories.make_cell(threads=threads) for threads in (1, 2, 3)]
    both = [factories.make_record(cell=cell) for cell in cells]
    elsewhere = [msgspec.structs.replace(r, environment=factories.make_environment(machine="other")) for r in both]
    comparison = compare([*both, *elsewhere], [*both, *elsewhere], ("throughput", "memory"))
    names = [(cell["name"], cell["metric"]["name"]) for cell in json.loads(to_json(comparison))["cells"]]
    assert len(set(names)) == len(names) == 12
