"""`tcbench doctor`."""
