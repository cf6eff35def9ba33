"""Who does the work: the protocol, and one folder per device."""
