"""`tcbench list`."""
