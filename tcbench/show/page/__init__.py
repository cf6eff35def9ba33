"""The report: one HTML file with everything that results tell, which opens from a disk with no network.

One way only: results -> sections of a frozen page (`build`) -> template (`render`) -> file (`save`). Imports matplotlib
by way of the charts' palette, so the command line imports it late.
"""

from tcbench.show.page.build import Compared, Results, build
from tcbench.show.page.files import beside, check_path, save
from tcbench.show.page.render import render
from tcbench.show.page.trials import MOST

__all__ = ["MOST", "Compared", "Results", "beside", "build", "check_path", "render", "save"]
