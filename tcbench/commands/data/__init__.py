"""`tcbench data`."""
