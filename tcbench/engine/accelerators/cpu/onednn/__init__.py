"""The processor as an accelerator through oneDNN."""
