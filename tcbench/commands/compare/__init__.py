"""`tcbench compare`."""
