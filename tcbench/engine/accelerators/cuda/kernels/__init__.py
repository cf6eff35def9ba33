"""Our own CUDA kernels: their sources, the launch for each piece of work, compiling and loading."""
