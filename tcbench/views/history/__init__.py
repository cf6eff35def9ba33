"""Throughput over commits."""
