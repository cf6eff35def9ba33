"""Facts of the host."""
