"""The roofline's tables on consoles."""

import io
import json

import pytest
from factories import LADDERS, make_record

from tcbench.analysis.summary import summarise
from tcbench.commands.roofline import table as view
from tcbench.commands.roofline.roofline import cell_roofline
from tcbench.engine.accelerators.ceilings import Ceilings, Reached
from tcbench.show.tables import Screen


def test_a_ceiling_that_was_only_reached_says_by_what() -> None:
    measured = Ceilings("it", {"fp32": 1e11}, 2e10, "measured")
    assert view.headline(measured) == "it: 100 GFLOP/s (fp32), 20.0 GB/s: measured"
    raised = measured.raised({"memory": Reached(3e10, "update of fp32, batch size 4")})
    above = "ceiling of memory raised to the rate of update of fp32, batch size 4"
    assert view.headline(raised) == f"it: 100 GFLOP/s (fp32), 30.0 GB/s: measured; {above}"
    [summary] = summarise([make_record()])
    [cell] = json.loads(view.to_json([cell_roofline(summary, [make_record()], raised)]))["cells"]
    assert cell["ceilings"]["bandwidth_bytes_s"] == 3e10
    assert cell["ceilings"]["reached_by"] == {"memory": "update of fp32, batch size 4"}


@pytest.mark.parametrize(("width", "full"), [(80, False), (110, True)])
def test_no_console_breaks_the_words_of_a_phase(width: int, full: bool) -> None:
    records = [make_record(LADDERS[9], size) for size in (4, 128)]
    ceilings = Ceilings("it", {"fp32": 1e13}, 1e12, "measured")
    cells = [
        cell_roofline(summary, [record], ceilings) for summary, record in zip(summarise(records), records, strict=True)
    ]
    console = Screen(file=io.StringIO(), width=width)
    console.table(view.phases_table(cells))
    shown = console.file.getvalue().split()  # type: ignore[attr-defined]
    assert shown.count("backward") == shown.count("update") == 2
    assert ("least" in shown) == ("MB" in shown) == full
    assert not any("…" in word for word in shown)
    console.notes([])
    assert ("also shows: GFLOP, MB, least." in console.file.getvalue()) is not full  # type: ignore[attr-defined]
