"""Modules that other revisions of tcbench start by the names of version 0.1."""
