"""CUDA, without a framework."""
