"""`tcbench explain`."""
