"""Charts: the talk's bars, one chart per slide of its comparisons, and what each rung buys.

Owns how summaries look on paper and nothing of what they mean. Everything is drawn on a sheet laid out in inches, with
texts measured before they are placed, so that nothing covers anything else whatever the number of configs, batch
sizes and machines. Imports matplotlib, so the command line imports it late.
"""

import matplotlib

from tcbench.show.plots.bars import throughput_chart
from tcbench.show.plots.comparison import comparison_chart
from tcbench.show.plots.files import SUFFIXES, check_path, save
from tcbench.show.plots.history import history_chart
from tcbench.show.plots.machines import machines_chart
from tcbench.show.plots.palette import GAIN, GAIN_PALE, LOSS, LOSS_PALE, RAMPS, Fill, family, fill
from tcbench.show.plots.provenance import MAX_PANELS
from tcbench.show.plots.slides import SLIDES, slide_chart
from tcbench.show.plots.waterfall import ladder_chart
from tcbench.show.plots.wording import why_missing

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
