"""What other revisions of tcbench start by the names of 0.1."""
