"""What users look at, a folder or a file per subject: its table, its chart, its section of the report."""
