"""Charts: pages laid out from what matplotlib measures, with one style sheet, so that nothing covers anything else
whatever the number of configs, batch sizes and machines. Imports matplotlib, so the command line imports it late.
"""

import logging

import matplotlib

from tcbench.present.charts.style import STYLE

# Not those of a matplotlibrc in the user's folders or the current one, which may ask for LaTeX or leave a chart empty.
matplotlib.rcdefaults()
matplotlib.rcParams.update(STYLE)
# It tells of a cache that it cannot write, in two lines with a path of its own: no chart depends on it.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
