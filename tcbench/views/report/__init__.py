"""The report: one HTML file with everything that results tell, which opens from a disk with no network.

One way only: results -> sections of a frozen page (`build`) -> template (`render`) -> file (`save`). Imports matplotlib
by way of the charts' palette, so the command line imports it late.
"""

from tcbench.views.report.build import Compared, Results, build
from tcbench.views.report.files import check_path, save
from tcbench.views.report.render import render

__all__ = ["Compared", "Results", "build", "check_path", "render", "save"]
