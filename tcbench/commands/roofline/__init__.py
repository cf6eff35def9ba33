"""`tcbench roofline`."""
