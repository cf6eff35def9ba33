"""`tcbench profile`."""
