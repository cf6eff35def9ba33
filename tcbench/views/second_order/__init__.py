"""Two optimizers racing to the same loss."""
