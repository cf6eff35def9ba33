"""Charts of one style, laid out by measured text so that nothing overlaps, however many configs there are. This package
imports matplotlib, so commands import it late."""

from typing import Any

import matplotlib

from tcbench.show.charts.palette import FAINT, INK, QUIET
from tcbench.show.charts.text import DPI, LABEL, LEGEND, WORDS, families

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
"""Matplotlib's parameters for every chart."""

# Ignore any matplotlibrc: it may ask for LaTeX or make charts unreadable.
matplotlib.rcdefaults()
matplotlib.rcParams.update(STYLE)
