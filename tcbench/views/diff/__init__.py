"""What differs between two cells, phase by phase."""
