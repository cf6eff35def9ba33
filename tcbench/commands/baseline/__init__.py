"""`tcbench baseline`."""
