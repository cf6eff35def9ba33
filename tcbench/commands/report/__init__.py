"""`tcbench report`."""
