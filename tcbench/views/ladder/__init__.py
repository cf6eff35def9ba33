"""What each rung buys."""
