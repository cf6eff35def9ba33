import json
from dataclasses import replace

import factories
import msgspec

from tcbench.analysis.compare import compare
from tcbench.analysis.welch import Estimate, Group
from tcbench.views.comparison.form import to_json


def test_an_interval_without_end_is_null():
    comparison = compare(factories.make_trials(), factories.make_trials(seed=1))
    endless = replace(comparison.cells[0], estimate=Estimate(Group(2, 0.0, 1e9), Group(2, 0.0, 1e9)))
    (cell,) = json.loads(to_json(replace(comparison, cells=(endless,))))["cells"]
    assert cell["ratio"] == {"value": 1.0, "low": 0.0, "high": None}


def test_names_are_unique():
    cells = [factories.make_cell(threads=threads) for threads in (1, 2, 3)]
    both = [factories.make_record(cell=cell) for cell in cells]
    elsewhere = [msgspec.structs.replace(r, environment=factories.make_environment(machine="other")) for r in both]
    comparison = compare([*both, *elsewhere], [*both, *elsewhere], ("throughput", "memory"))
    names = [(cell["name"], cell["metric"]["name"]) for cell in json.loads(to_json(comparison))["cells"]]
    assert len(set(names)) == len(names) == 12
