"""Building blocks of the HTML report: sections as data, their template, drawings, and settings."""
