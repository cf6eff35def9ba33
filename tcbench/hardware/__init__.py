"""Facts about the host and about GPUs, without any framework."""
