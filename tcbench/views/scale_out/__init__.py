"""Throughput of clusters that are not here."""
