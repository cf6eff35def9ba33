"""What memory and arithmetic allow, and what was reached."""
