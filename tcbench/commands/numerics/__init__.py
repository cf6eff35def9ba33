"""`tcbench numerics`."""
