"""Records, contracts and errors: what every other room speaks in."""
