"""Throughput over ranks."""
