"""`tcbench gate`."""
