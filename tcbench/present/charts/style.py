"""The style sheet of all charts: fonts, inks, grid and legend, as matplotlib's own settings.

Owns what holds for every chart before anything is drawn on it. Knows nothing of results.
"""

from typing import Any

from tcbench.present.charts.palette import FAINT, INK, QUIET
from tcbench.present.charts.text import DPI, LABEL, LEGEND, WORDS, families

STYLE: Any = {
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "svg.hashsalt": "tcbench",
    "pdf.fonttype": 42,
    "font.family": list(families()),
    "font.size": WORDS,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": LABEL,
    "axes.titlepad": 5.0,
    "axes.labelsize": LABEL,
    "axes.labelcolor": QUIET,
    "axes.formatter.useoffset": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    **{
        f"{axis}tick.{name}": value
        for axis in "xy"
        for name, value in {"major.size": 0, "minor.size": 0, "labelcolor": QUIET, "labelsize": WORDS}.items()
    },
    "legend.frameon": False,
    "legend.fontsize": LEGEND,
    "legend.borderpad": 0.0,
    "legend.borderaxespad": 0.0,
    "legend.handlelength": 1.45,
    "legend.handleheight": 1.0,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.8,
    "legend.labelspacing": 0.35,
}
