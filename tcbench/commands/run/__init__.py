"""`tcbench run`."""
