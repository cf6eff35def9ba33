"""`tcbench submit`."""
