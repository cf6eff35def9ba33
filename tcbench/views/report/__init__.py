"""The report: all views on one page, which opens from a disk with no network."""
