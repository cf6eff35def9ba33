"""`tcbench export`."""
