"""The CPU as an accelerator: oneDNN where it is installed, NumPy otherwise."""
