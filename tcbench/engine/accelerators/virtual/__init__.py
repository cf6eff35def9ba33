"""A GPU that is not there: the host's side runs for real, the device's takes the time that its card's figures imply."""
