"""`tcbench claims`."""
