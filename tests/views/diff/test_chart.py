"""The page's section on why cells changed."""

import factories

from tcbench.analysis.compare import compare
from tcbench.analysis.diff import changed
from tcbench.views.diff import chart as changes


def trials(rates: dict[str, float]):
    return [
        factories.make_record(config, trial=trial, images_per_s=rate)
        for config, rate in rates.items()
        for trial in range(4)
    ]


def test_cells_that_surely_changed_are_taken_apart_those_that_changed_most_first():
    before, after = trials({"fp32": 40, "fp16": 40, "bf16": 40}), trials({"fp32": 40, "fp16": 30, "bf16": 50})
    diffs = changed(compare(before, after), before, after)
    assert [diff.base.label.partition(",")[0] for diff in diffs] == ["fp16", "bf16"]
    section = changes.section(diffs, "main")
    assert section is not None
    figure = section.blocks[-1]
    rows = [[field.text for field in row] for row in figure.table.fields]
    assert len(rows) == 2 * (4 + 1 + 1)  # phases, the rest and the step
    assert rows[0][:2] == ["fp16, batch size 4", "backward"]
    assert "<svg" in figure.drawn.svg


def test_without_a_change_there_is_no_section():
    before = trials({"fp32": 40})
    assert changes.section(changed(compare(before, before), before, before), "main") is None
