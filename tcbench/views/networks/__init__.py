"""Several networks side by side."""
