"""`tcbench plot`."""
