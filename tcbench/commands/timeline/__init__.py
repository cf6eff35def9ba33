"""`tcbench timeline`."""
