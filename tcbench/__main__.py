"""`python -m tcbench`."""

from tcbench.cli import main

main()
