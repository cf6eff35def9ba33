"""The report: one HTML file with everything that results tell, which opens from a disk with no network.

One way only: results -> sections of a frozen page (`build`) -> template (`render`) -> file (`save`). Imports matplotlib
by way of the charts' palette, so the command line imports it late.
"""
