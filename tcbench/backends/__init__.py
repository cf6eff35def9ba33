"""Modules that users' own steps import by the names of tcbench 0.1."""
