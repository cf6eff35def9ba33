"""Charts: the talk's bars, one chart per slide of its comparisons, and what each rung buys.

Owns how summaries look on paper and nothing of what they mean. Everything is drawn on a sheet laid out in inches, with
texts measured before they are placed, so that nothing covers anything else whatever the number of configs, batch
sizes and machines. Imports matplotlib, so the command line imports it late.
"""

import matplotlib

from tcbench.show.charts.bars import throughput_chart
from tcbench.show.charts.comparison import comparison_chart
from tcbench.show.charts.files import SUFFIXES, check_path, save
from tcbench.show.charts.history import history_chart
from tcbench.show.charts.machines import machines_chart
from tcbench.show.charts.palette import GAIN, GAIN_PALE, LOSS, LOSS_PALE, RAMPS, Fill, family, fill
from tcbench.show.charts.provenance import MAX_PANELS
from tcbench.show.charts.slides import SLIDES, slide_chart
from tcbench.show.charts.waterfall import ladder_chart
from tcbench.show.charts.wording import why_missing

__all__ = [
    "GAIN",
    "GAIN_PALE",
    "LOSS",
    "LOSS_PALE",
    "MAX_PANELS",
    "RAMPS",
    "SLIDES",
    "SUFFIXES",
    "Fill",
    "check_path",
    "comparison_chart",
    "family",
    "fill",
    "history_chart",
    "ladder_chart",
    "machines_chart",
    "save",
    "slide_chart",
    "throughput_chart",
    "why_missing",
]

# Not those of a matplotlibrc in the user's folders or the current one, which may ask for LaTeX or leave a chart empty.
matplotlib.rcdefaults()
