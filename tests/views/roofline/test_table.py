"""The roofline's tables on consoles."""

import io

import pytest
from factories import LADDERS, make_record

from tcbench.analysis.roofline import roofline
from tcbench.analysis.summary import summarise
from tcbench.engine.accelerators.ceilings import Ceilings
from tcbench.present.tables import Screen
from tcbench.views.roofline import table as view


@pytest.mark.parametrize(("width", "full"), [(80, False), (110, True)])
def test_no_console_breaks_the_words_of_a_phase(width: int, full: bool) -> None:
    records = [make_record(LADDERS[9], size) for size in (4, 128)]
    ceilings = Ceilings("it", {"fp32": 1e13}, 1e12, "measured")
    cells = [roofline(one, [record], ceilings) for one, record in zip(summarise(records), records, strict=True)]
    console = Screen(file=io.StringIO(), width=width)
    console.table(view.phases_table(cells))
    shown = console.file.getvalue().split()  # type: ignore[attr-defined]
    assert shown.count("backward") == shown.count("update") == 2
    assert ("least" in shown) == ("MB" in shown) == full
    assert not any("…" in word for word in shown)
    console.notes([])
    assert ("also shows: GFLOP, MB, least." in console.file.getvalue()) is not full  # type: ignore[attr-defined]
