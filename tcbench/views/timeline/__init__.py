"""Who works when: host, input, device."""
