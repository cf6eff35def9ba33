"""What holds a step back, and what to try next."""
