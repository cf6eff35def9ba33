"""`tcbench gate --bisect`."""
