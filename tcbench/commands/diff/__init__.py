"""`tcbench diff`."""
