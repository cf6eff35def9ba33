"""The accelerator protocol, with one folder per kind of device."""
