"""Simulated GPUs: the program on the host really runs, and launches take the time that a GPU's figures imply."""
