"""Charts: the talk's bars, one chart per slide of its comparisons, and what each rung buys.

Draws summaries and knows nothing of what they mean. Pages are laid out from what matplotlib measures, with
one style sheet, so that nothing covers anything else whatever the number of configs, batch sizes and machines. Imports
matplotlib, so the command line imports it late.
"""

import matplotlib

from tcbench.show.charts.bars import throughput_chart
from tcbench.show.charts.comparison import comparison_chart
from tcbench.show.charts.diff import diff_chart
from tcbench.show.charts.files import SUFFIXES, check_path, save
from tcbench.show.charts.history import history_chart
from tcbench.show.charts.machines import machines_chart
from tcbench.show.charts.networks import networks_chart
from tcbench.show.charts.palette import GAIN, GAIN_PALE, LOSS, LOSS_PALE, RAMPS, Fill, family, fill
from tcbench.show.charts.provenance import MAX_PANELS
from tcbench.show.charts.scaling import scaling_chart
from tcbench.show.charts.slides import SLIDES, slide_chart
from tcbench.show.charts.style import STYLE
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
    "diff_chart",
    "family",
    "fill",
    "history_chart",
    "ladder_chart",
    "machines_chart",
    "networks_chart",
    "save",
    "scaling_chart",
    "slide_chart",
    "throughput_chart",
    "why_missing",
]

# Not those of a matplotlibrc in the user's folders or the current one, which may ask for LaTeX or leave a chart empty.
matplotlib.rcdefaults()
matplotlib.rcParams.update(STYLE)
