"""The CPU accelerator that uses oneDNN."""
