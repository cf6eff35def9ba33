"""The kit of the report's page: frozen sections, their template, drawings within it, and how settings are told."""
