"""How anything is shown, whatever the subject: options, consoles, tables, charts, pages, numbers in words."""
