"""The host's Python functions, phase by phase."""
