"""Our own kernels: CUDA sources, how each piece of work launches one, compiling and loading them."""
