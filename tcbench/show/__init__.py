"""Output shared by all commands: options, consoles, tables, charts, pages, and the format of numbers."""
