import json
from dataclasses import replace

import factories

from tcbench.analysis.compare import compare
from tcbench.analysis.welch import Estimate, Group
from tcbench.views.comparison.table import to_json


def test_an_interval_without_end_is_null():
    comparison = compare(factories.make_trials(), factories.make_trials(seed=1))
    endless = replace(comparison.cells[0], estimate=Estimate(Group(2, 0.0, 1e9), Group(2, 0.0, 1e9)))
    (cell,) = json.loads(to_json(replace(comparison, cells=(endless,))))["cells"]
    assert cell["ratio"] == {"value": 1.0, "low": 0.0, "high": None}
