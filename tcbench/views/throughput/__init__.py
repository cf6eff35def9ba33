"""Items per second of each cell."""
