"""The chart of the host's time: a block per phase with its own words, and words where nothing was profiled."""

import reports
from present.charts.charts import assert_tidy, words

from tcbench.analysis.explanation import explain
from tcbench.views.bottleneck.chart import bottleneck_chart


def test_a_batch_size_at_which_nothing_was_profiled_says_why() -> None:
    records = [record for record in reports.whole().records if record.cell.batch_size == 4 or record.status != "ok"]
    figure = bottleneck_chart(explain(records))
    assert_tidy(figure)
    assert {"out of memory", "not run"} <= set(words(figure))
