"""Devices that do the work: the protocol, and one folder per device."""
