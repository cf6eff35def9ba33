"""`tcbench forecast`."""
