"""cuDNN 9: graphs and their plans through its frontend, the older batch normalisation calls through ctypes.

Functions import cuDNN and CuPy when they need them, so that every module can be imported without either."""
