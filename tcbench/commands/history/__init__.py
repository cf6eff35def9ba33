"""`tcbench history`."""
