"""Code inside a trial: building and measuring a cell's session. Only this package imports frameworks."""
