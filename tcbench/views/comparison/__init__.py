"""What got slower, in every format."""
